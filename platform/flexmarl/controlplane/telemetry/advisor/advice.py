"""Reads what the advisor's rules look at, and says how runs are: verdicts of lists, advisories of one run.

A verdict never says another word than the advisories of the same moment: both come from the same rules. Lists leave
out the rules that need intervals; these only give tips, and tips are no part of a verdict.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from flexmarl.contracts.specification.environment import EnvironmentSpec
from flexmarl.contracts.specification.environment_base import EnvironmentFacts
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.advisor.hysteresis import NEWEST, settled
from flexmarl.controlplane.telemetry.advisor.rules import NAMES, WORKING, AdviceVerdict, Advisory, Facts, verdict_of
from flexmarl.controlplane.telemetry.timeline import bubble
from flexmarl.controlplane.telemetry.timeline.windows import window_of
from flexmarl.store.reads import advisor_inputs
from flexmarl.store.reads.activity import WORK

LOOKS = {
    AdviceVerdict.HEALTHY: ("Healthy", "ok", "circle-check"),
    AdviceVerdict.WATCH: ("Watch", "wn", "alert-triangle"),
    AdviceVerdict.DEGRADED: ("Degraded", "bad", "alert-circle"),
    AdviceVerdict.STALLED: ("Stalled", "bad", "player-pause"),
}
"""Verdict -> (word, tone, icon)."""


def verdicts(found: Sequence[Run]) -> dict[int, dict[str, Any]]:
    """Return run number -> verdict of the runs that work; two queries for any number of them."""
    facts = _facts([run for run in found if run.state.status in WORKING])
    return {run.no: _verdict(run, settled(facts[run.no])) for run in found if run.no in facts}


def verdict(run: Run) -> dict[str, Any] | None:
    """Return how one run is, None when it does not work at the moment."""
    return verdicts([run]).get(run.no)


def advisories(run: Run) -> dict[str, Any]:
    """Return a run's verdict and its advisories, worst first, each with its evidence and the chart that proves it."""
    facts = _facts([run] if run.state.status in WORKING else []).get(run.no)
    rows = [] if facts is None else settled(_with_load(run, facts))
    return {
        "verdict": None if facts is None else _verdict(run, rows),
        "results": [{**asdict(row), "chart": _chart(run, row)} for row in rows],
        "seq": run.state.seq,
    }


def _verdict(run: Run, rows: Sequence[Advisory]) -> dict[str, Any]:
    """Say how a run is in one word and one sentence: the worst advisory that is no tip."""
    found = verdict_of(rows)
    word, tone, icon = LOOKS[found]
    worst = rows[0] if rows and found is not AdviceVerdict.HEALTHY else None
    return {
        "verdict": found.value,
        "word": word,
        "tone": tone,
        "icon": icon,
        "text": worst.text if worst else "No issues found.",
        "basis": worst.basis if worst else "",
        "rule": worst.rule if worst else None,
        "severity": worst.severity.value if worst else None,
        "chart": _chart(run, worst) if worst else None,
    }


PATHS = {"overview": "", "pipeline": "/performance", "timeline": "/performance/timeline"}
"""Page of a run that a rule names -> its address below the run's, where it is not the page's own name."""


def _chart(run: Run, row: Advisory) -> dict[str, str]:
    tab, figure = row.chart
    path = PATHS.get(tab, f"/{tab}")
    if tab == "metrics":
        return {"tab": tab, "figure": figure, "web_url": f"/runs/{run.key}{path}?open={figure}"}
    tail = figure if figure.startswith("?") else f"#{figure.replace('/', '-')}" if figure else ""
    return {"tab": tab, "figure": figure, "web_url": f"/runs/{run.key}{path}{tail}"}


def _facts(found: Sequence[Run]) -> dict[int, Facts]:
    if not found:
        return {}
    conn, numbers = store_connection(), [run.no for run in found]
    series: dict[int, dict[tuple[str, str, str], advisor_inputs.SeriesEnds]] = {no: {} for no in numbers}
    for ends in advisor_inputs.series_ends(conn, numbers, NAMES, NEWEST):
        series[ends.run_id][ends.name, ends.agent, ends.stat] = ends
    at = {moment.run_id: moment for moment in advisor_inputs.moments(conn, numbers, WORK)}
    return {run.no: _facts_of(run, at[run.no], series[run.no]) for run in found}


def _facts_of(
    run: Run, at: advisor_inputs.Moment, series: dict[tuple[str, str, str], advisor_inputs.SeriesEnds]
) -> Facts:
    since = run.state.status_since.timestamp()
    return Facts(
        status=run.state.status,
        now=at.now,
        status_since=since,
        last_event=since if at.last_event is None else at.last_event,
        waiting_for=str(run.state.progress.get("waiting_for", "")),
        series=series,
        work=at.work,
        episodes_per_step=int(run.spec["batch"]["tasks_per_step"]) * int(run.spec["batch"]["episodes_per_task"]),
        lag_bound=int(run.spec["mechanisms"]["lag_policy"]["bound"]),
        truncated=at.samples,
        whole=_whole(run.spec),
        optimum=_environment(json.dumps(run.spec["environment"], sort_keys=True)).optimum,
    )


@lru_cache(maxsize=256)
def _environment(written: str) -> EnvironmentFacts:
    """Return the facts of an environment given as JSON."""
    return TypeAdapter(EnvironmentSpec).validate_json(written).facts()


def _whole(spec: dict[str, Any]) -> frozenset[str]:
    """List the policies whose replies cannot be cut off: they have one length, and their agents' limits allow it."""
    roles = {role.name: role for role in _environment(json.dumps(spec["environment"], sort_keys=True)).roles}
    whole: dict[str, bool] = {}
    for name, agent in spec["agents"].items():
        length = roles[name].reply_tokens
        fits = length is not None and length <= (agent["sampling"]["max_tokens"] or length)
        policy = agent["policy"] or name
        whole[policy] = whole.get(policy, True) and fits
    return frozenset(policy for policy, every in whole.items() if every)


def _with_load(run: Run, facts: Facts) -> Facts:
    """Add how the load is spread over agents and engines, from closed intervals."""
    window = window_of(run)
    devices, found, _ = bubble.read(run, window)
    return replace(
        facts,
        rollout_s={row["policy"]: row["rollout_s"] for row in bubble.rates(found, devices) if row["rollout_s"] > 0},
        engine_busy={
            d.lease.device_id: d.busy_s / d.held_s for d in devices if d.lease.use == "engine" and d.held_s > 60
        },
        window_words=f"last {window.words()}",
    )
