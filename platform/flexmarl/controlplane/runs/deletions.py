"""Deletion of a run as people ask for it: gone from every list at once, its rows and files behind that.

Invariants: what people see of a run - itself, its operations, labels and recorded simulations - goes in the transaction
that notes the deletion, so nothing can be asked of a run that is being deleted. The rest is carried out by the
housekeeping of a driver and by the nodes, and goes on after any interruption (`flexmarl.store.control.deletions`). Only
a draft or an ended run is deleted, of which nothing is asked and with whose weights no other run is still to begin.
Asked again, the answer is the same operation.
"""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.problems import Conflict, InvalidState, NotFound, PermissionDenied
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs import queries
from flexmarl.controlplane.runs.choices import OperationState, allowed_now, archivable
from flexmarl.controlplane.runs.models import Run, RunDeletion, RunStateRow
from flexmarl.store.control import deletions

ACTION = "delete"
DONE = "deleted"
MAX_REASON = 300


class HasWaitingForks(Conflict):
    code = "has_waiting_forks"
    title = "Other runs will start from its weights"


@transaction.atomic
def delete(actor: Actor, run: Run, reason: str = "") -> RunDeletion:
    """Take a run away and have everything of it removed.

    Raises PermissionDenied, InvalidState with what is possible instead, or HasWaitingForks.
    """
    if not queries.may_edit(actor, run):
        raise PermissionDenied("Only its owner and operators may delete a run.")
    state = RunStateRow.objects.select_for_update().get(run=run)
    if not Run.objects.filter(pk=run.pk).exists():
        return _found(Q(run=run.pk))
    _check_state(run, state)
    _check_forks(run)
    request = deletions.DeletionRequest(
        run.no, uuid7(), run.id, run.key, run.project_id, actor.name, reason[:MAX_REASON], actor.request_id
    )
    deletions.ask(store_connection(), request)
    owner = run.owner.username if run.owner else None
    record(
        actor, "run.delete", "run", run.id, run.key, project=run.project_id,
        before={"name": run.name, "status": state.status, "step": state.step, "owner": owner},
        operation=str(request.operation), reason=request.reason,
    )  # fmt: skip
    Run.objects.get(pk=run.pk).delete()
    live.announce_on_commit(live.run_topic(run.id), state.seq)
    live.announce_on_commit(live.CLUSTER, 0)
    return _found(Q(operation=request.operation))


def delete_by_name(actor: Actor, reference: str) -> RunDeletion:
    """Delete a run by id or key; of one that was deleted already, return how far that is. Raises also NotFound."""
    try:
        run = queries.find_run(actor, reference)
    except NotFound:
        found = _reach(actor).filter(_named(reference)).order_by("-asked_at").first()
        if found is None:
            raise
        return found
    return delete(actor, run)


def find_operation(actor: Actor, operation_id: str) -> RunDeletion:
    """Return a deletion by its operation. Raises NotFound, also when the caller may not know of its run."""
    try:
        found = _reach(actor).filter(operation=UUID(operation_id)).first()
    except ValueError:
        found = None
    if found is None:
        raise NotFound(f"There is no operation {operation_id}.")
    return found


def operation_row(deletion: RunDeletion) -> dict[str, Any]:
    """Return a deletion in the shape of operations."""
    state = OperationState.PENDING if deletion.rows_gone_at is None else OperationState.RUNNING
    if deletion.ended_at is not None:
        state = OperationState.SUCCEEDED
    return {
        "id": str(deletion.operation),
        "action": ACTION,
        "state": state.value,
        "target": {
            "kind": "run", "id": str(deletion.run), "key": deletion.key, "url": f"/api/v1/runs/{deletion.run}",
        },
        "result": {"status": DONE} if deletion.ended_at is not None else None,
        "error": None,
        "reason": deletion.reason,
        "request_id": deletion.request_id,
        "created_by": deletion.asked_by or None,
        "created_at": rfc3339(deletion.asked_at),
        "ended_at": rfc3339(deletion.ended_at),
        "url": f"/api/v1/operations/{deletion.operation}",
        "web_url": "/runs",
    }  # fmt: skip


def _check_state(run: Run, state: RunStateRow) -> None:
    status = RunStatus(state.status)
    if archivable(status, state.pending_verb):
        return
    allowed = [str(name) for name in allowed_now(status, state.pending_verb)]
    behind = f" with {state.pending_verb} pending" if state.pending_verb else ""
    detail = f"{run.key} is {status}{behind}; only ended runs and drafts can be deleted. Stop or kill it first."
    raise InvalidState(detail, state=status.value, allowed_actions=allowed)


def _check_forks(run: Run) -> None:
    numbers = deletions.waiting_forks(store_connection(), run.no)
    if not numbers:
        return
    keys = sorted(Run.objects.filter(no__in=numbers).values_list("key", flat=True))
    detail = (
        f"Forks ({', '.join(keys)}) are to begin with weights of {run.key} and have no copy"
        " of their own yet. Start or delete them first."
    )
    raise HasWaitingForks(detail, extra={"forks": keys})


def _reach(actor: Actor) -> QuerySet[RunDeletion]:
    return in_reach(RunDeletion.objects.all(), actor, Scope.RUNS_READ, "project")


def _named(reference: str) -> Q:
    try:
        return Q(run=UUID(reference))
    except ValueError:
        return Q(key=reference)


def _found(which: Q) -> RunDeletion:
    return RunDeletion.objects.get(which)
