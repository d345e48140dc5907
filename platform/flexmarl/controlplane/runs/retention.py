"""Retirement of samples as people and the platform ask for it: which runs are due, one after the other, each reported.

Invariants: what `flexmarl.store.retention` promises; a run whose readers keep it, or that lives again, is left for the
next round and stops no other one.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import structlog
from psycopg import Connection

from flexmarl.store import retention
from flexmarl.store.connection import connect
from flexmarl.store.errors import Refused
from flexmarl.store.segments import SegmentFolder

log = structlog.get_logger(__name__)

DAY_S = 86_400.0
FIRST_S = 60.0
"""First round after a start, and every look for what was interrupted."""
EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run's samples; `kept` says why they stay, if they do."""

    run_no: int
    samples: int = 0
    kept: str = ""


def retire(conn: Connection, run_numbers: list[int]) -> Iterator[Outcome]:
    """Retire the samples of runs, as the one janitor. The connection commits each statement."""
    with retention.janitor(conn) as mine:
        if not mine:
            yield from (Outcome(number, kept="another janitor is at work") for number in run_numbers)
            return
        for number in run_numbers:
            try:
                yield Outcome(number, retention.retire_samples(conn, number).samples)
            except Refused as refused:
                yield Outcome(number, kept=str(refused))
            except psycopg.errors.LockNotAvailable:
                yield Outcome(number, kept="somebody reads its samples; it is tried again later")


class Janitor:
    """Housekeeping of a driver process: retires what is due and removes files whose rows are gone, once an hour.

    What was interrupted is looked for every minute: a run that lives again may be without its table.
    """

    def __init__(self, url: str, payloads: Path, keep_days: int, every_s: float = EVERY_S) -> None:
        self._url, self._payloads, self._keep_days, self._every_s = url, payloads, keep_days, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)

    def start(self) -> None:
        """Begin; the first round comes a minute after the start."""
        self._thread.start()

    def stop(self) -> None:
        """End; a retirement in work is finished by whoever comes next."""
        self._stop.set()

    def tidy(self, conn: Connection) -> list[Outcome]:
        """Turn one round."""
        due = retention.due(conn, self._keep_days * DAY_S if self._keep_days else None)
        done = list(retire(conn, due))
        for outcome in done:
            log.info("samples_retired", run_id=outcome.run_no, samples=outcome.samples, kept=outcome.kept)
        removed = retention.collect(conn, SegmentFolder(self._payloads)) if self._payloads.is_dir() else 0
        if removed:
            log.info("payload_files_removed", files=removed)
        return done

    def mend(self, conn: Connection) -> list[Outcome]:
        """Finish or take back what was interrupted."""
        return list(retire(conn, retention.due(conn, None)))

    def _run(self) -> None:
        full_at = 0.0
        while not self._stop.wait(min(FIRST_S, self._every_s)):
            if time.monotonic() < full_at:
                self._guarded(self.mend)
                continue
            full_at = time.monotonic() + self._every_s
            self._guarded(self.tidy)

    def _guarded(self, round_: Callable[[Connection], object]) -> None:
        try:
            with connect(self._url, "flexmarl.janitor") as conn:
                round_(conn)
        except (psycopg.Error, OSError) as error:
            log.warning("janitor_round_failed", error=str(error).strip())
