"""What others read of sweeps, as plain values."""

from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.sweeps.models import Sweep, SweepState, SweepTrial, TrialState
from flexmarl.store.reads.device_use import device_hours

ACTIONS = {SweepState.RUNNING: ["stop"], SweepState.STOPPED: ["resume", "delete"]}
"""State -> what may be asked for; the others allow `delete`."""


def sweeps(actor: Actor) -> QuerySet[Sweep]:
    """The sweeps that the caller may read, with their counts."""
    rows = Sweep.objects.select_related("owner", "experiment").defer("spec", "experiment__notes")
    counted = rows.annotate(
        made=Count("trials"), ended=Count("trials", filter=~Q(trials__state=TrialState.RUNNING))
    ).order_by("-id")
    return in_reach(counted, actor, Scope.RUNS_READ)


def find_sweep(actor: Actor, sweep_id: UUID) -> Sweep:
    """Return a sweep that the caller may read. Raises NotFound."""
    found = sweeps(actor).filter(pk=sweep_id).first()
    if found is None:
        raise NotFound("There is no such sweep.")
    return found


def may_change(actor: Actor, sweep: Sweep) -> bool:
    """Say whether a caller may stop, resume and delete a sweep."""
    own = sweep.owner_id is not None and sweep.owner_id == actor.user_id
    project = sweep.project_id
    return actor.may(Scope.RUNS_ACT_ANY, project) or (own and actor.may(Scope.RUNS_ACT, project))


def sweep_row(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as a plain value."""
    plan = sweep.plan
    return {
        "id": str(sweep.pk),
        "project": sweep.project_id,
        "name": sweep.name,
        "experiment": None
        if sweep.experiment is None
        else {"id": str(sweep.experiment_id), "name": sweep.experiment.name},
        "owner": sweep.owner.username if sweep.owner else None,
        "state": sweep.state,
        "reason": sweep.reason,
        "reason_text": sweep.reason_text,
        "method": plan["method"],
        "metric": plan["metric"],
        "goal": plan["goal"],
        "trials": {"made": getattr(sweep, "made", 0), "ended": getattr(sweep, "ended", 0), "most": plan["trials"]},
        "allowed_actions": ACTIONS.get(SweepState(sweep.state), ["delete"]),
        "created_at": rfc3339(sweep.created_at),
        "updated_at": rfc3339(sweep.updated_at),
        "version": sweep.version,
        "url": f"/api/v1/sweeps/{sweep.pk}",
        "web_url": f"/sweeps/{sweep.pk}",
    }


def sweep_detail(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep with its plan, its trials, the best of them and the device-hours used."""
    trials = list(SweepTrial.objects.filter(sweep=sweep).select_related("run__state").order_by("number"))
    rows = [_trial_row(one) for one in trials]
    numbers = [one.run.no for one in trials if one.run is not None]
    return {
        **sweep_row(sweep),
        "plan": sweep.plan,
        "device_hours": round(device_hours(store_connection(), numbers), 4) if numbers else 0.0,
        "best": best(rows, sweep.plan["goal"]),
        "tried": rows,
    }


def best(rows: list[dict[str, Any]], goal: str) -> int | None:
    """Return the number of the trial with the best objective, of those that did not fail."""
    good = [row for row in rows if row["objective"] is not None and row["state"] != TrialState.FAILED]
    sign = 1 if goal == "maximize" else -1
    found = max(good, key=lambda row: sign * row["objective"], default=None)
    return None if found is None else int(found["number"])


def _trial_row(one: SweepTrial) -> dict[str, Any]:
    return {
        "number": one.number,
        "values": one.values,
        "state": one.state,
        "objective": one.objective,
        "why": one.why,
        "run": None
        if one.run is None
        else {"id": str(one.run_id), "key": one.run.key, "status": one.run.state.status, "step": one.run.state.step},
    }
