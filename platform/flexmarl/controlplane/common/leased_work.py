"""Long work on rows: one process at a time takes a row, says that it goes on, and ends it.

Invariants. A row belongs to the process that took it last: `take` raises `takes`, every later write names it, and one
that finds another number there, or a row that was cancelled, stops. A process that dies leaves its lease, and whoever
looks after its end takes the row again, `MOST_TAKES` times in all.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from flexmarl.controlplane.common.models import OPEN, LeasedWork, WorkState

MOST_TAKES = 3
W = TypeVar("W", bound=LeasedWork)


class Stopped(BaseException):
    """The work ends here: it was cancelled, taken by another, is over time, or the process is to end.

    No Exception, so that nothing between takes it for a fault of its own.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def take(model: type[W], lease_s: float, gave_up: str) -> W | None:
    """Take the row that waits longest, or one whose process died; None when there is none.

    A row that was taken too often fails with the text `gave_up`, in which `{takes}` stands for how often.
    """
    free = Q(state=WorkState.QUEUED) | Q(state=WorkState.RUNNING, lease_until__lt=Now())
    with transaction.atomic():
        row = model._default_manager.select_for_update(skip_locked=True).filter(free).order_by("id").first()
        if row is None:
            return None
        if row.takes >= MOST_TAKES:
            end(row, WorkState.FAILED, "gave_up", gave_up.format(takes=row.takes))
            return None
        row.takes += 1
        row.state, row.started_at = WorkState.RUNNING, row.started_at or timezone.now()
        row.lease_until, row.done, row.now_at = _until(lease_s), 0, ""
        row.save()
    return row


class Holder:
    """A row that was taken, as the process that took it goes on with it."""

    def __init__(self, row: LeasedWork, lease_s: float, limit_s: float, ending: Callable[[], bool]) -> None:
        self._row, self._lease_s, self._limit_s, self._ending = row, lease_s, limit_s, ending
        self._began = time.monotonic()

    def look(self) -> None:
        """Raise Stopped when the process is to end or the work is over time."""
        if self._ending():
            raise Stopped("ending")
        if time.monotonic() - self._began > self._limit_s:
            raise Stopped("over time")

    def write(self, **columns: Any) -> None:
        """Renew the lease and write how far it is. Raises Stopped when nobody wants the rest."""
        if not _own(self._row).update(lease_until=_until(self._lease_s), **columns):
            raise Stopped("taken away")

    def stopped(self, why: str, advice: str) -> None:
        """Write what becomes of work that was stopped; of what is no longer held, nothing."""
        if why == "over time":
            end(self._row, WorkState.FAILED, "time_limit", f"It was not done after {self._limit_s:.0f} s. {advice}")
        elif why == "ending":  # whoever comes next begins it again, and this take does not count
            takes = self._row.takes - 1
            _own(self._row).update(state=WorkState.QUEUED, lease_until=None, takes=takes, done=0, now_at="")


def end(row: LeasedWork, state: WorkState, reason: str, text: str, **found: Any) -> None:
    """Write how a row that is still held ended."""
    _own(row).update(
        state=state, reason=reason, reason_text=text, finished_at=timezone.now(), lease_until=None, now_at="",
        updated_at=timezone.now(), version=row.version + 1, **found,
    )  # fmt: skip


def _own(row: LeasedWork) -> Any:
    """The row, as long as this process has it."""
    return type(row)._default_manager.filter(pk=row.pk, takes=row.takes, state__in=OPEN)


def _until(lease_s: float) -> Any:
    return Now() + timedelta(seconds=lease_s)
