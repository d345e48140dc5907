"""Housekeeping of the store: deletions that people asked for, limits by age and size, and what takes the room.

Invariants: what `flexmarl.store.data.retention` and `flexmarl.store.control.deletions` promise; one janitor works at a
time; a run whose readers hold it, or that lives again, is left for the next round and stops no other one.
"""

import contextlib
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import structlog
from django.db import DatabaseError, close_old_connections
from psycopg import Connection

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict
from flexmarl.controlplane.registry import uploads
from flexmarl.controlplane.runs import limits
from flexmarl.controlplane.runs.deletions import delete
from flexmarl.controlplane.runs.models import Run
from flexmarl.host.backups import removals_held
from flexmarl.host.disk import PARTS
from flexmarl.store.connection import connect
from flexmarl.store.control import deletions
from flexmarl.store.data import retention, trimming
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.errors import Refused, StoreError
from flexmarl.store.reads import storage
from flexmarl.store.telemetry import log_retention

log = structlog.get_logger(__name__)

LOOK_S = 3.0
"""Between two looks for deletions that were asked for."""
MEND_S = 60.0
"""Between two looks for what was interrupted."""
FIRST_S = 60.0
"""First full round after a start."""
EVERY_S = 3600.0
JANITOR_STATEMENT_S = 3600.0
"""A janitor may remove a large table; nobody waits for it."""


@dataclass(frozen=True, slots=True)
class RetentionOutcome:
    """What became of one run's samples; `kept` says why they stay, if they do."""

    run_no: int
    samples: int = 0
    kept: str = ""


def retire(conn: Connection, run_numbers: list[int]) -> Iterator[RetentionOutcome]:
    """Retire the samples of runs, as the one janitor. The connection commits each statement."""
    with retention.janitor(conn) as mine:
        if not mine:
            yield from (RetentionOutcome(number, kept="another cleanup is running") for number in run_numbers)
            return
        for number in run_numbers:
            try:
                yield RetentionOutcome(number, retention.retire_samples(conn, number).samples)
            except Refused as refused:
                yield RetentionOutcome(number, kept=str(refused))
            except psycopg.errors.LockNotAvailable:
                yield RetentionOutcome(number, kept="its samples are being read; it will be retried")


def delete_runs(run_numbers: list[int], reason: str) -> Iterator[RetentionOutcome]:
    """Delete whole runs in the platform's name, as if somebody had asked for it; what may not go yet is told."""
    for run in Run.objects.filter(no__in=run_numbers).select_related("owner").order_by("no"):
        try:
            delete(Actor.system("retention"), run, reason)
        except Conflict as conflict:
            yield RetentionOutcome(run.no, kept=conflict.detail)
        else:
            yield RetentionOutcome(run.no)


class Janitor:
    """Housekeeping of a driver process: deletes at once what people asked to be deleted, and once an hour lets go of
    what limits no longer allow, removes files whose rows are gone and measures what is left.

    What was interrupted is looked for every minute: a run that lives again may be without its table.
    """

    def __init__(self, url: str, home: Path, every_s: float = EVERY_S) -> None:
        self._url, self._home, self._every_s = url, home, every_s
        self._payloads = home / "payloads"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)

    def start(self) -> None:
        """Begin; the first full round comes a minute after the start."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is in work is finished by whoever comes next."""
        self._stop.set()

    def tidy(self, conn: Connection) -> list[RetentionOutcome]:
        """Turn one full round. Needs autocommit."""
        began = time.time()
        storage.save(conn, self._measure(conn), self._report(conn, began, []))
        samples, log_lines, whole = limits.limits()
        done = list(retire(conn, limits.due(conn, samples)))
        with retention.janitor(conn) as mine:
            lines = [(run_id, log_retention.remove(conn, run_id)) for run_id in limits.due(conn, log_lines) if mine]
        ended = list(delete_runs(limits.due(conn, whole), f"limit {whole.days_setting}, {whole.size_setting}"))
        for outcome in done:
            log.info("samples_retired", run_id=outcome.run_no, samples=outcome.samples, kept=outcome.kept)
        for run_id, count in lines:
            log.info("log_lines_removed", run_id=run_id, lines=count)
        for outcome in ended:
            log.info("run_given_up", run_id=outcome.run_no, kept=outcome.kept)
        self._collect(conn)
        if expired := uploads.clear():
            log.info("uploads_removed", uploads=expired)
        removed = [
            *({"run": o.run_no, "kind": storage.SAMPLES, "amount": o.samples, "kept": o.kept} for o in done),
            *({"run": run_id, "kind": storage.LOG, "amount": count, "kept": ""} for run_id, count in lines),
            *({"run": o.run_no, "kind": limits.RUNS, "amount": int(not o.kept), "kept": o.kept} for o in ended),
        ]
        storage.save(conn, self._measure(conn), self._report(conn, began, removed))
        return done

    def mend(self, conn: Connection) -> list[RetentionOutcome]:
        """Finish or take back what was interrupted, and let go of tokens that settings do not keep."""
        done = list(retire(conn, retention.due(conn, None)))
        self._trim(conn)
        return done

    def delete(self, conn: Connection) -> list[int]:
        """Carry out the deletions that were asked for; returns the runs whose rows are gone. Needs autocommit."""
        gone = []
        with retention.janitor(conn) as mine:
            for run_id in deletions.open_deletions(conn) if mine else []:
                try:
                    deletions.carry_out(conn, run_id, lambda: self._collect(conn))
                except (StoreError, psycopg.errors.LockNotAvailable) as error:
                    log.warning("deletion_waits", run_id=run_id, reason=str(error).strip())
                    continue
                log.info("run_deleted", run_id=run_id)
                gone.append(run_id)
        return gone

    def _trim(self, conn: Connection) -> None:
        with retention.janitor(conn) as mine:
            for run_id, share, replayed_for in trimming.runs_with_a_share(conn) if mine else []:
                while (trimmed := trimming.trim(conn, run_id, share, replayed_for)).more and not self._stop.is_set():
                    pass
                if trimmed.payloads:
                    log.info("tokens_let_go", run_id=run_id, payloads=trimmed.payloads, bytes=trimmed.bytes)

    def _collect(self, conn: Connection) -> None:
        if removals_held(self._home):
            return
        removed = retention.collect(conn, SegmentFolder(self._payloads)) if self._payloads.is_dir() else 0
        if removed:
            log.info("payload_files_removed", files=removed)

    def _measure(self, conn: Connection) -> list[storage.Use]:
        files = [storage.Use(run_id, storage.PAYLOADS, *size) for run_id, size in payload_files(self._payloads).items()]
        return [*storage.measure(conn), *files]

    def _report(self, conn: Connection, began: float, done: list[dict[str, object]]) -> storage.Pass:
        places = {name: folder_bytes(self._home / name) for name in PARTS if name != "postgres"}
        places |= {"database": storage.database_bytes(conn), "wal": folder_bytes(self._home / "postgres/data/pg_wal")}
        with contextlib.suppress(OSError):
            places["free"] = shutil.disk_usage(self._home).free
        return storage.Pass(began, time.time(), socket.gethostname(), places, done)

    def _run(self) -> None:
        now = time.monotonic()
        full_at, mend_at = now + min(FIRST_S, self._every_s), now + MEND_S
        while not self._stop.wait(min(LOOK_S, self._every_s)):
            self._guarded(self.delete)
            now = time.monotonic()
            if now >= full_at:
                full_at = now + self._every_s
                self._guarded(self.tidy)
            elif now >= mend_at:
                mend_at = now + MEND_S
                self._guarded(self.mend)

    def _guarded(self, round_: Callable[[Connection], object]) -> None:
        try:
            with connect(self._url, "flexmarl.janitor", statement_s=JANITOR_STATEMENT_S) as conn:
                round_(conn)
        except (psycopg.Error, DatabaseError, OSError) as error:
            log.warning("janitor_round_failed", error=str(error).strip())
        finally:
            close_old_connections()


def folder_bytes(folder: Path) -> int:
    """Return what the files below a folder take; what goes meanwhile, or may not be read, counts nothing."""
    taken = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(place, name))
                taken += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return taken


def payload_files(folder: Path) -> dict[int, tuple[int, int]]:
    """Return the segment files of each run below a folder: run -> (files, bytes)."""
    found = {}
    for path in folder.glob("run-*"):
        if (number := path.name.removeprefix("run-")).isdecimal():
            found[int(number)] = (sum(1 for _ in path.iterdir()), folder_bytes(path))
    return found
