"""Choices of runs, from the contracts: statuses, verbs, and how far an operation is."""

from enum import StrEnum

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import TERMINAL, RunStatus, allowed_verbs, next_status


class OperationState(StrEnum):
    PENDING = "pending"
    """The driver has not seen the verb yet."""
    RUNNING = "running"
    """The driver acts on it."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


def wished_status(status: RunStatus, pending: str) -> RunStatus:
    """Return the status a run will have when its pending verb is handled."""
    if not pending:
        return status
    try:
        return next_status(status, Verb(pending))
    except ValueError:  # the run moved on, and the driver will refuse the verb
        return status


def allowed_now(status: RunStatus, pending: str) -> tuple[Verb, ...]:
    """List the verbs that are legal behind the pending one."""
    return allowed_verbs(wished_status(status, pending))


def archivable(status: RunStatus, pending: str) -> bool:
    """Say whether a run may be taken out of the lists: an ended one or a draft, of which nothing is asked."""
    return (status in TERMINAL or status is RunStatus.DRAFT) and not pending
