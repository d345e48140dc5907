"""How old the weights are that rows are trained against: per policy now, per step, and what was dropped for it.

Own lag is the number of versions between the weights that made a row and those it is trained on; the bound is on it.
Lag now is what a row would have that were cut at this moment from the oldest cohort under way.
"""

from typing import Any

from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.flow import cohorts
from flexmarl.store.reads import lag_rows, places

DEFAULT_STEPS = 20
MAX_STEPS = 500


def lag(run: Run, steps: int = DEFAULT_STEPS, shown: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the lag of every trained policy. `shown` is what `cohorts` returned, when the caller has it."""
    conn = store_connection()
    spec = ExperimentSpec.model_validate(run.spec)
    under_way = [row for row in (shown or cohorts.cohorts(run))["results"] if row["state"] in cohorts.UNDER_WAY]
    committed = lag_rows.committed(conn, run.no)
    points = lag_rows.steps(conn, run.no, run.state.step - steps)
    gone: dict[str, list[dict[str, Any]]] = {}
    for policy, cause, rows in places.dropped(conn, run.no):
        gone.setdefault(policy, []).append({"cause": cause, "rows": rows})
    policies = []
    for name in spec.trainable_policies():
        terms = spec.lag_policy_of(name)
        pinned = sorted({row["pins"][name] for row in under_way if name in row["pins"]})
        version = committed.get(name)
        policies.append(
            {
                "policy": name,
                "bound": terms.bound,
                "at_admission": terms.at_admission,
                "in_flight": terms.in_flight,
                "at_cut": terms.at_cut,
                "at_turn": terms.at_turn,
                "version": version,
                "pinned": pinned,
                "own_now": version - pinned[0] if pinned and version is not None else None,
                "steps": [_step(step, figures) for step, figures in sorted(points.get(name, {}).items())],
                "dropped": gone.get(name, []),
            }
        )
    return {
        "policies": policies,
        "cohorts": [{"cohort": row["cohort"], "pins": row["pins"]} for row in under_way],
        "groups_ruled_out": gone.get("", []),
        "step": run.state.step,
        "seq": run.state.seq,
    }


def _step(step: int, figures: dict[str, float]) -> dict[str, Any]:
    return {"step": step, **{name: figures.get(name) for name in lag_rows.FIGURES.values()}}
