"""Series of a run: the catalogue, points thinned for a chart, exports, and what scripts add.

The axis `version` exists only where it is honest: a series of an agent lies at the version its own policy had at the
end of the step. The team has no version, so its series refuse that axis and name the legal ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from psycopg import Connection

from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import EachTime, store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.charts.definitions import define
from flexmarl.store.telemetry import metrics
from flexmarl.store.telemetry.metrics import SeriesWindow

DEFAULT_POINTS = 500
MAX_POINTS = 5000
MAX_RUNS = 8
AXES: tuple[metrics.Axis, ...] = ("step", "time", "samples", "version")
TEAM_AXES: tuple[metrics.Axis, ...] = ("step", "time", "samples")


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """Which series are asked for and how. Without an agent: those of all agents and of the team."""

    names: Sequence[str]
    agent: str | None = None
    stat: str | None = None
    window: SeriesWindow = field(default_factory=lambda: SeriesWindow(max_points=DEFAULT_POINTS))


def describe(name: str) -> tuple[str, str]:
    """Return (title, unit) of a series."""
    found = define(name)
    return found.title, found.unit


def policies(run: Run) -> dict[str, str]:
    """Map each role of a run to its policy."""
    return {role: agent.get("policy") or role for role, agent in run.spec["agents"].items()}


def catalogue(run: Run) -> list[dict[str, Any]]:
    """List the series of a run with what they mean, their range and the axes they can be drawn on."""
    rows = metrics.catalogue(store_connection(), run.no)
    versioned = {row.agent for row in rows if row.name == metrics.VERSION_SERIES}
    policy_of = policies(run)
    return [
        {
            **asdict(row),
            "title": define(row.name).title,
            "unit": define(row.name).unit,
            "meaning": define(row.name).meaning,
            "x": list(AXES if row.agent and policy_of.get(row.agent, row.agent) in versioned else TEAM_AXES),
        }
        for row in rows
    ]


def matching(names: Sequence[str], pattern: str) -> set[str] | None:
    """Return the names a regular expression finds, whatever the case; None when it is none."""
    return metrics.matching(store_connection(), names, pattern)


def data(
    run: Run,
    names: Sequence[str],
    *,
    agent: str | None = None,
    x: metrics.Axis = "step",
    start: float | None = None,
    end: float | None = None,
    max_points: int = DEFAULT_POINTS,
) -> dict[str, Any]:
    """Read points of series. `seq` is the run's newest event when they were read."""
    return answer(run, SeriesQuery(names, agent, None, SeriesWindow(x, start, end, max_points)))


def answer(run: Run, asked: SeriesQuery) -> dict[str, Any]:
    """Answer a question about one run. Raises ValidationProblem for the versions of a team's series."""
    found = metrics.series(
        store_connection(), run.no, asked.names, agent=asked.agent, window=asked.window, policy_of=policies(run)
    )
    if asked.window.x == "version":
        _refuse_team(run, asked, {series.name for series in found})
    shown = [series for series in found if asked.stat in (None, series.stat)]
    return {"series": [_series(series, asked) for series in shown], "x": asked.window.x, "seq": run.state.seq}


def _series(series: metrics.Series, asked: SeriesQuery) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": series.name,
        "agent": series.agent,
        "stat": series.stat,
        "x": series.x,
        "y": series.y,
    }
    if asked.window.buckets:
        row["buckets"] = [asdict(bucket) for bucket in series.buckets]
    return row


def _refuse_team(run: Run, asked: SeriesQuery, found: set[str]) -> None:
    """Refuse versions for series that only the team has."""
    missing = [name for name in asked.names if name not in found]
    if not missing:
        return
    known = {row.name for row in metrics.catalogue(store_connection(), run.no) if row.agent == ""}
    team = [name for name in missing if name in known and asked.agent in (None, "")]
    if team:
        detail = f"{team[0]} is a series of the team, which has no version."
        hint = f"Legal for it: {', '.join(TEAM_AXES)}."
        raise ValidationProblem(detail, errors=[FieldError("x", "no_version", detail, hint, "query")])


def compare(runs: Sequence[Run], asked: SeriesQuery) -> dict[str, Any]:
    """Answer one question for several runs."""
    rows = []
    for run in runs:
        found = answer(run, asked)
        rows.append(
            {"id": str(run.id), "key": run.key, "name": run.name, "seq": found["seq"], "series": found["series"]}
        )
    return {"runs": rows, "x": asked.window.x}


def export(run: Run, names: Sequence[str], agent: str | None = None) -> Iterator[list[Mapping[str, Any]]]:
    """Read every point of some series, of all when none is named, some thousand at a time."""
    wanted = list(names) or sorted({row.name for row in metrics.catalogue(store_connection(), run.no)})
    columns = ("name", "agent", "stat", "step", "at", "samples", "value")
    for rows in metrics.export(cast("Connection[Any]", EachTime()), run.no, wanted, agent):
        yield [dict(zip(columns, row, strict=True)) for row in rows]
