"""A run beside what was predicted of it, by the same definitions on both sides.

Steps count from the end of the first one, which begins cold; a device is at work while it generates, makes a gradient
or steps; hours are those to the end of the budget at the pace so far, since a target may end the run earlier.
"""

from typing import Any

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.experiments.predictions import HOUR_S, plan_row
from flexmarl.controlplane.runs.models import Run
from flexmarl.store.reads import activity
from flexmarl.store.telemetry import intervals


def planned(run: Run) -> dict[str, Any] | None:
    """Return the prediction, what the run takes, and how the two compare; None when no plan predicted it."""
    if run.plan is None:
        return None
    predicted, actual = plan_row(run.plan), actual_of(run)
    return {"predicted": predicted, "actual": actual, "compared": _compared(predicted, actual) if actual else []}


def actual_of(run: Run) -> dict[str, Any] | None:
    """Return what a run takes; None before its second step."""
    conn = store_connection()
    found = activity.served_steps(conn, run.no)
    if found is None or run.state.started_at is None:
        return None
    since, until, steps = found
    step_s = (until - since) / steps
    worked = intervals.worked(conn, run.no, since, until)
    busy = {use: round(worked[use][1] / worked[use][0], 6) if worked.get(use, (0, 0))[0] else None for use in USES}
    seconds = since - run.state.started_at.timestamp() + (run.spec["budget"]["train_steps"] - 1) * step_s
    return {
        "steps": steps,
        "window_s": round(until - since, 3),
        "step_s": round(step_s, 6),
        "utilisation": busy,
        "hours": round(seconds / HOUR_S, 6),
    }


USES = ("engine", "trainer")
_COMPARED = ("step_s", "utilisation.engine", "utilisation.trainer", "hours")


def _compared(predicted: dict[str, Any], actual: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name in _COMPARED:
        told, took = _member(predicted, name), _member(actual, name)
        if took is not None:
            rows.append(
                {
                    "name": name, **told, "actual": took, "within": told["low"] <= took <= told["high"],
                    "ratio": round(told["likely"] / took, 4) if took else None,
                }
            )  # fmt: skip
    return rows


def _member(of: dict[str, Any], name: str) -> Any:
    for part in name.split("."):
        of = of[part]
    return of
