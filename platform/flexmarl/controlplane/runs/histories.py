"""What became of what people asked: operations with their outcome, and the attempts of a run."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Q, QuerySet

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import shown_status
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.choices import OperationState
from flexmarl.controlplane.runs.models import Attempt, Handled, Operation, Run, VerbOutcome


def operations(run: Run) -> QuerySet[Operation]:
    """The operations of a run, newest first, with what a row needs."""
    return Operation.objects.filter(run=run).select_related("run__state", "actor").order_by("-id")


def operation_row(operation: Operation) -> dict[str, Any]:
    """Return an operation with how far it is."""
    return operation_rows([operation])[0]


def operation_rows(found: Iterable[Operation]) -> list[dict[str, Any]]:
    """Return operations with how far each is: two queries, however many there are."""
    found = list(found)
    keys = _keys(found)
    handled = set(Handled.objects.filter(keys).values_list("run_id", "producer_key")) if found else set()
    outcomes = {(o.run_id, o.producer_key): o for o in VerbOutcome.objects.filter(keys)} if found else {}
    return [
        _row(operation, (where := (operation.run.no, operation.producer_key)) in handled, outcomes.get(where))
        for operation in found
    ]


def _keys(found: Sequence[Operation]) -> Q:
    """Narrow rows of the store to those of some operations, by the first columns of their keys."""
    return Q(
        run_id__in={operation.run.no for operation in found},
        producer_key__in=[operation.producer_key for operation in found],
    )


def _row(operation: Operation, handled: bool, outcome: VerbOutcome | None) -> dict[str, Any]:
    run, state = operation.run, _state(handled, outcome)
    succeeded = state is OperationState.SUCCEEDED
    return {
        "id": str(operation.id),
        "action": operation.verb,
        "state": state.value,
        "target": {"kind": "run", "id": str(run.id), "key": run.key, "url": f"/api/v1/runs/{run.id}"},
        "result": {"status": _reached(operation, outcome)} if outcome is not None and succeeded else None,
        "error": None if outcome is None or outcome.succeeded else {"status": outcome.status, "reason": outcome.text},
        "reason": operation.reason,
        "request_id": operation.request_id,
        "created_by": operation.actor.username if operation.actor else None,
        "created_at": rfc3339(operation.created_at),
        "ended_at": None if outcome is None else rfc3339(outcome.at),
        "url": f"/api/v1/operations/{operation.id}",
        "web_url": f"/runs/{run.key}",
    }


def _reached(operation: Operation, outcome: VerbOutcome) -> str:
    """The status in which an operation succeeded: a stop ends its run for the reason that the run shows."""
    reason = operation.run.state.reason if operation.verb == Verb.STOP else ""
    return shown_status(outcome.status, reason)


def _state(handled: bool, outcome: VerbOutcome | None) -> OperationState:
    if outcome is not None:
        return OperationState.SUCCEEDED if outcome.succeeded else OperationState.FAILED
    return OperationState.RUNNING if handled else OperationState.PENDING


def attempts(run: Run) -> list[dict[str, Any]]:
    """List a run's attempts, oldest first. Steps are counted as done before it began and when it ended."""
    return [
        {
            "no": row.no,
            "epoch": row.epoch,
            "verb": row.verb,
            "began_by": row.began_by,
            "began_at": rfc3339(row.began_at),
            "first_step": row.first_step,
            "ended_at": rfc3339(row.ended_at),
            "ended_by": row.ended_by,
            "status": shown_status(row.status or run.state.status, row.reason if row.status else run.state.reason),
            "reason": row.reason,
            "reason_text": row.reason_text,
            "last_step": row.last_step if row.ended_at is not None else run.state.step,
            "versions": row.versions,
        }
        for row in Attempt.objects.filter(run_id=run.no).order_by("no")
    ]
