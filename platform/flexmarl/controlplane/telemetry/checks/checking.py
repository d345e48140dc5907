"""Checks of consistency are made here, one at a time, by a thread of a process that answers no requests.

Who may write to a row is said by `common.leased_work`; a check that lost its row stops before its next statement. No
statement of a check outlives `STATEMENT_S`, which is shorter than the lease.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import psycopg
import structlog
from django.db import connection
from django.db.utils import Error as DatabaseError

from flexmarl.controlplane.common import leased_work
from flexmarl.controlplane.common.leased_work import Holder, Stopped, end
from flexmarl.controlplane.common.models import OPEN, WorkState
from flexmarl.controlplane.runs.models import ConsistencyCheck
from flexmarl.store.connection import connect
from flexmarl.store.reads.report import PromiseReport, full_report

log = structlog.get_logger(__name__)
STATEMENT_S, LEASE_S, BEAT_S, IDLE_S = 20.0, 30.0, 0.5, 0.5
LIMIT_S = 1800.0
MOST_KEPT = 10
"""Checks of a run whose rows are kept."""


def take() -> ConsistencyCheck | None:
    """Take the check that waits longest, or one whose process died; None when there is none."""
    row = leased_work.take(ConsistencyCheck, LEASE_S, "The process that ran it exited {takes} times. Start it again.")
    return None if row is None else ConsistencyCheck.objects.select_related("run").get(pk=row.pk)


def check(row: ConsistencyCheck, url: str, stopping: threading.Event) -> None:
    """Make a check that was taken, and write what it found."""
    holder = Holder(row, LEASE_S, LIMIT_S, stopping.is_set)
    try:
        with connect(url, "flexmarl.checks", statement_s=STATEMENT_S) as conn:
            found = full_report(conn, row.run.no, _watch(holder))
    except Stopped as stopped:
        holder.stopped(stopped.why, "Start it again later.")
    except psycopg.errors.QueryCanceled:
        text = f"One statement took longer than {STATEMENT_S:g} s: the database is busy. Start it again later."
        end(row, WorkState.FAILED, "time_limit", text)
    except (DatabaseError, psycopg.OperationalError):
        raise
    except Exception as error:  # whatever rows of one run make it raise ends this check alone
        log.exception("check_failed", run=row.run.key)
        end(row, WorkState.FAILED, "fault", f"{type(error).__name__}: {error}"[:500])
    else:
        end(row, WorkState.DONE, "", "", done=1000, ok=_ok(found), result=_result(found))
    _forget_old(row)


def _watch(holder: Holder) -> Callable[[int, str], None]:
    """Return what hears of progress: it renews the lease, and ends a check that nobody wants any more."""
    written = float("-inf")

    def heard(done: int, now: str) -> None:
        nonlocal written
        holder.look()
        if time.monotonic() - written >= BEAT_S:
            holder.write(done=done, now_at=now)
            written = time.monotonic()

    return heard


def _ok(found: PromiseReport) -> bool:
    return all(one.ok for one in found.checks)


def _result(found: PromiseReport) -> dict[str, Any]:
    return {"checks": [asdict(one) for one in found.checks], "counts": asdict(found.counts), "seq": found.seq}


def _forget_old(row: ConsistencyCheck) -> None:
    """Delete what is older than the newest checks of a run; the last whole one stays."""
    ended = ConsistencyCheck.objects.filter(run_id=row.run_id).exclude(state__in=OPEN)
    kept = [*ended.order_by("-id").values_list("pk", flat=True)[:MOST_KEPT]]
    kept += ended.filter(state=WorkState.DONE).order_by("-finished_at").values_list("pk", flat=True)[:1]
    ended.exclude(pk__in=kept).delete()


class CheckingThread(threading.Thread):
    """Makes checks that wait until told to end. A database that goes away is waited for."""

    def __init__(self, url: str) -> None:
        super().__init__(name="checks", daemon=True)
        self._url, self._stopping = url, threading.Event()

    def run(self) -> None:
        """Take and check."""
        while not self._stopping.is_set():
            try:
                row = take()
                if row is not None:
                    check(row, self._url, self._stopping)
                    continue
            except (DatabaseError, psycopg.OperationalError) as error:
                log.warning("database_lost", error=str(error))
                connection.close()
            except Exception:  # the thread outlives any fault: checks that wait would wait for ever
                log.exception("checking_failed")
            self._stopping.wait(IDLE_S)
        connection.close()

    def stop(self) -> None:
        """End before the next statement; what was under way is begun again by the next process."""
        self._stopping.set()
        self.join(5)
