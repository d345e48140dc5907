"""A comparison of runs: variants with what differs, their curves folded over seeds, and their final figures.

A final figure of a run is the mean of a series over the last tenth of the steps that it trained: a single last value
would be noise, and runs that stopped early are still read at their own end. Curves are reduced here to at most
`PLACES` places, each the mean of a run's points in it; the band reaches from the lowest to the highest run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any
from uuid import UUID

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments import queries as experiments
from flexmarl.controlplane.runs import queries as runs_queries
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.charts.definitions import define
from flexmarl.controlplane.telemetry.comparison.statistics import LEVEL, estimate, holm, welch
from flexmarl.controlplane.telemetry.comparison.variants import Variant, variants
from flexmarl.store.telemetry import metrics
from flexmarl.store.telemetry.metrics import Series, SeriesWindow

MOST_RUNS = 20
PLACES = 200
READ_POINTS = 5000
"""Points of a series that are read whole; a longer one is thinned to its extremes first."""
LAST_SHARE = 0.1
USUAL = "reward/team"
_STATS = ("mean", "share", "last", "")
Curves = dict[str, dict[int, Series]]
"""Agent ("" for the team) -> run number -> its series."""


def chosen(actor: Actor, references: Sequence[str], experiment: str, baseline: str) -> tuple[list[Run], Run | None]:
    """Return the runs to compare and the baseline. Raises ValidationProblem, NotFound."""
    found: list[Run] = []
    base: Run | None = None
    if experiment:
        asked = experiments.find_experiment(actor, _uuid(experiment))
        found = list(runs_queries.runs(actor).filter(experiment_id=asked.pk).order_by("-id")[: MOST_RUNS + 1])
        base = next((run for run in found if run.pk == asked.baseline_id), None)
        if base is None and asked.baseline_id:
            base = runs_queries.find_run(actor, asked.baseline_id)
            found = [base, *found[: MOST_RUNS - 1]]
        found = found if references else found[:MOST_RUNS]
    if references:
        found = [runs_queries.find_run(actor, reference) for reference in dict.fromkeys(references)]
    if len(found) > MOST_RUNS:
        raise _refusal("runs", "too_many", f"{len(found)} runs are named; at most {MOST_RUNS} are compared.")
    if not found:
        raise _refusal("runs", "required", "No runs are named.", "Send runs=KEY,KEY, or experiment with runs in it.")
    if baseline:
        base = next((run for run in found if baseline in (run.key, str(run.pk))), None)
        if base is None:
            raise _refusal("baseline", "unknown_run", f"{baseline} is not one of the runs that are compared.")
    return found, base


def compare(runs: Sequence[Run], baseline: Run | None, metric: str = USUAL) -> dict[str, Any]:
    """Compare runs in one series."""
    groups, pointers = variants(runs, baseline)
    curves = _curves(runs, metric)
    return {
        "metric": {"name": metric, "title": define(metric).title, "unit": define(metric).unit},
        "metrics": names_of(runs),
        "pointers": pointers,
        "variants": [_variant(no, one) for no, one in enumerate(groups)],
        "facets": [_facet(agent, groups, found) for agent, found in sorted(curves.items())],
        "level": LEVEL,
        "test": "Welch's t-test, two-sided, over runs; p corrected by Holm's method for the number of variants",
    }


def names_of(runs: Sequence[Run]) -> list[str]:
    """List the series that some run has."""
    return sorted({row.name for run in runs for row in metrics.catalogue(store_connection(), run.no)})


def final(series: Series) -> float:
    """Return the mean of a series over the last tenth of its steps."""
    bound = series.x[-1] - LAST_SHARE * (series.x[-1] - min(series.x[0], 1.0))
    return fmean(y for x, y in zip(series.x, series.y, strict=True) if x >= bound)


def _curves(runs: Sequence[Run], metric: str) -> Curves:
    found: Curves = {}
    for run in runs:
        read = metrics.series(store_connection(), run.no, [metric], window=SeriesWindow(max_points=READ_POINTS))
        for one in sorted(read, key=lambda one: _STATS.index(one.stat) if one.stat in _STATS else len(_STATS)):
            if one.x:
                found.setdefault(one.agent, {}).setdefault(run.no, one)
    return found


def _variant(no: int, one: Variant) -> dict[str, Any]:
    return {
        "no": no,
        "baseline": one.baseline,
        "values": one.values,
        "runs": [
            {"id": str(run.pk), "key": run.key, "name": run.name, "seed": run.seed, "step": run.state.step}
            for run in one.runs
        ],
    }


def _facet(agent: str, groups: Sequence[Variant], curves: Mapping[int, Series]) -> dict[str, Any]:
    rows = [_figures(no, one, curves) for no, one in enumerate(groups)]
    base: list[float] = next((row["values"] for row, one in zip(rows, groups, strict=True) if one.baseline), [])
    tested = [row for row, one in zip(rows, groups, strict=True) if not one.baseline and row["values"] and base]
    made = [(row, test) for row in tested if (test := welch(row["values"], base)) is not None]
    for (row, test), p in zip(made, holm([test.p for _, test in made]), strict=True):
        row["against"] = {**asdict(test), "p_corrected": p, "n_base": len(base), "significant": p < 1 - LEVEL}
    width = max(1, -(-int(max(one.x[-1] for one in curves.values())) // PLACES))
    drawn = [_folded([curves[run.no] for run in one.runs if run.no in curves], width) for one in groups]
    return {"agent": agent, "curves": drawn, "figures": rows}


def _figures(no: int, one: Variant, curves: Mapping[int, Series]) -> dict[str, Any]:
    values = [final(curves[run.no]) for run in one.runs if run.no in curves]
    told = asdict(estimate(values)) if values else {"n": 0, "mean": None, "low": None, "high": None}
    return {"variant": no, "values": values, **told, "against": None}


def _folded(found: Sequence[Series], width: int) -> dict[str, list[float]]:
    """Fold the curves of a variant's runs: mean, lowest and highest run at each place of `width` steps."""
    places: dict[int, list[float]] = {}
    for one in found:
        own: dict[int, list[float]] = {}
        for x, y in zip(one.x, one.y, strict=True):
            own.setdefault(int(x - 1) // width, []).append(y)
        for place, values in own.items():
            places.setdefault(place, []).append(fmean(values))
    rows = [(place * width + 1 + (width - 1) / 2, places[place]) for place in sorted(places)]
    return {
        "x": [x for x, _ in rows],
        "mean": [fmean(values) for _, values in rows],
        "low": [min(values) for _, values in rows],
        "high": [max(values) for _, values in rows],
        "n": [len(values) for _, values in rows],
    }


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise _refusal("experiment", "invalid", "experiment is not the id of an experiment.") from None


def _refusal(name: str, code: str, detail: str, hint: str = "") -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(name, code, detail, hint, "query")])
