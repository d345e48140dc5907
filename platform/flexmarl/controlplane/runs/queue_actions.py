"""Changes of a run's place in the queue: its priority and its pools. Permission, check, write, audit, hint.

A priority is read by the next arbitration. Other pools are a fact of the run's log; the specification that the core
was given never changes, the one that people read does, with its source.
"""

from typing import Any
from uuid import uuid4

from django.db import transaction
from django.db.models import F

from flexmarl.contracts.events import PoolsChanged
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, InvalidState, PermissionDenied, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.runs import queries
from flexmarl.controlplane.runs.models import Run, RunStateRow
from flexmarl.store.control import inbox, pool_rules

LOWEST, HIGHEST = 0, 100
MOVABLE = (RunStatus.DRAFT, RunStatus.QUEUED)
MOVED = "moved"
"""Source of a pool that was chosen after the run was made."""


@transaction.atomic
def set_priority(actor: Actor, run: Run, priority: int) -> None:
    """Say how soon a run is served, 0 to 100. For operators: it decides over the runs of others."""
    actor.require(Scope.RUNS_ACT_ANY, run.project_id)
    if not LOWEST <= priority <= HIGHEST:
        detail = f"A priority is {LOWEST} to {HIGHEST}."
        raise ValidationProblem(detail, errors=[FieldError("/priority", "out_of_range", detail)])
    before = pool_rules.set_priority(store_connection(), run.no, priority)
    _written(actor, run, "run.set-priority", {"priority": before}, {"priority": priority})


@transaction.atomic
def move_pool(actor: Actor, run: Run, rollout_pool: str, training_pool: str) -> Run:
    """Let a run that holds no device ask for them in other pools. Raises InvalidState once it is too late."""
    if not queries.may_act(actor, run):
        needed = Scope.RUNS_ACT if run.owner_id == actor.user_id else Scope.RUNS_ACT_ANY
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})
    conn = store_connection()
    holds = pool_rules.has_devices(conn, run.no)
    status = RunStatus(RunStateRow.objects.get(run=run).status)
    if status not in MOVABLE or holds:
        has = " and holds devices" if holds else ""
        text = f"{run.key} is {status}{has}; only a draft or a queued run can be moved to another pool."
        raise InvalidState(text, state=status.value, allowed_actions=["clone"])
    wanted = {"rollout_pool": rollout_pool, "training_pool": training_pool}
    for member, pool in wanted.items():
        _check_pool(run.project_id, member, pool)
    # Locked anew: somebody may have edited the run since the caller read it.
    fresh = Run.objects.select_for_update().get(pk=run.pk)
    resources: dict[str, Any] = dict(fresh.spec["resources"])
    before = {member: resources[member] for member in wanted}
    sources = {
        **fresh.sources,
        **{f"/resources/{member}": MOVED for member in wanted if before[member] != wanted[member]},
    }
    spec = {**fresh.spec, "resources": {**resources, **wanted}}
    Run.objects.filter(pk=run.pk).update(spec=spec, sources=sources, version=F("version") + 1)
    inbox.put_event(
        conn,
        run.no,
        f"pools:{uuid4()}",
        PoolsChanged(rollout_pool=rollout_pool, training_pool=training_pool, actor=actor.name),
    )
    _written(actor, run, "run.move-pool", before, wanted)
    return queries.find_run(actor, run.id)


def _check_pool(project: str, member: str, pool: str) -> None:
    """Refuse a pool that nobody knows or that the project may not use."""
    known = inventory.pool_names()
    if pool not in known:
        detail, hint = f"Pool {pool} does not exist.", f"Pools: {', '.join(known)}."
        raise ValidationProblem(detail, errors=[FieldError(f"/{member}", "unknown_value", detail, hint)])
    if not inventory.may_use(project, pool):
        detail = f"Project {project} may not use {pool}."
        hint = "Ask an admin to bind the project to it."
        raise ValidationProblem(detail, errors=[FieldError(f"/{member}", "pool_closed", detail, hint)])


def _written(actor: Actor, run: Run, action: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    record(actor, action, "run", run.id, run.key, project=run.project_id, before=before, after=after)
    live.announce_on_commit(live.run_topic(run.id), run.state.seq)
    live.announce_on_commit(live.CLUSTER, 0)
