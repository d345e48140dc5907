"""Retirement of samples: an ended run's training rows and payloads leave, its curves, episodes and log stay.

Invariants. One janitor works at a time (an advisory lock of its session). A retirement is a row that begins before
anything goes and ends after everything went, so whoever comes next finishes what was interrupted. Only rows of an
ended run go, none of which its log has still to tell of: a run that came to life again meanwhile takes its detached
table back, and its row is held still from that look until everything went, so that no decision comes in between. Rows
in a table that runs share go in that one transaction. Whoever writes while a table is away is refused by name and
writes later. Files of retired segments are removed by whoever reaches their folder, after their rows are gone; a
segment belongs to one epoch of its run, so no writer of a later life ever adds to one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.contracts.status import TERMINAL
from flexmarl.store import partitions
from flexmarl.store.data.segments import SegmentFolder
from flexmarl.store.errors import Refused

_JANITOR_LOCK = 0x464C4559
_SAMPLE = "sample"
_ENDED = [status.value for status in TERMINAL]


@dataclass(frozen=True, slots=True)
class Retirement:
    run_id: int
    epoch: int
    samples: int


@contextmanager
def janitor(conn: Connection) -> Iterator[bool]:
    """Be the one janitor while the block runs; False when another session is."""
    row = conn.execute("SELECT pg_try_advisory_lock(%s)", [_JANITOR_LOCK]).fetchone()
    mine = row is not None and bool(row[0])
    try:
        yield mine
    finally:
        if mine:
            conn.execute("SELECT pg_advisory_unlock(%s)", [_JANITOR_LOCK])


def due(conn: Connection, ended_for_s: float | None) -> list[int]:
    """Find runs that ended so long ago and still have their samples, and those whose retirement was interrupted.

    None: only the interrupted ones.
    """
    rows = conn.execute(
        """
        SELECT r.run_id FROM store.run_state r LEFT JOIN store.retirement t USING (run_id)
        WHERE t.run_id IS NOT NULL AND t.ended_at IS NULL
          OR r.status = ANY(%(ended)s) AND (t.run_id IS NULL OR t.seq < r.seq)
            AND r.finished_at < clock_timestamp() - make_interval(secs => %(age)s::float8)
        ORDER BY r.run_id
        """,
        {"ended": _ENDED, "age": ended_for_s},
    ).fetchall()
    return [row[0] for row in rows]


def retire_samples(conn: Connection, run_id: int) -> Retirement:
    """Detach and drop an ended run's samples, and mark its segments. Needs autocommit; may be repeated.

    Raises Refused when the run has not ended or lives again; psycopg's LockNotAvailable when readers keep it.
    """
    retirement = _begin(conn, run_id)
    with partitions.lock_timeout(conn):
        if retirement is not None:
            partitions.detach(conn, _SAMPLE, run_id)
        with conn.transaction():
            if retirement is not None and _still_ended(conn, retirement):
                _remove(conn, retirement)
                return retirement
            _take_back(conn, run_id)
    raise Refused("run_lives", f"run {run_id} has not ended; only an ended run's samples are retired")


def collect(conn: Connection, folder: SegmentFolder) -> int:
    """Remove the files of a folder whose rows are gone; returns how many there were.

    Of a run that was dropped every file goes; nobody writes to it any more.
    """
    held = folder.held()
    if not held:
        return 0
    rows = conn.execute(
        """
        SELECT h.run_id, h.number FROM unnest(%(runs)s::bigint[], %(numbers)s::bigint[]) AS h(run_id, number)
        WHERE NOT EXISTS (SELECT 1 FROM store.run_state r WHERE r.run_id = h.run_id)
          OR EXISTS (SELECT 1 FROM store.segment s WHERE s.id = h.number AND s.retired_at IS NOT NULL)
        """,
        {"runs": [run_id for run_id, _ in held], "numbers": [number for _, number in held]},
    ).fetchall()
    folder.remove([(row[0], row[1]) for row in rows])
    return len(rows)


def _begin(conn: Connection, run_id: int) -> Retirement | None:
    """Note what is about to go; None unless the run has ended. An interrupted retirement goes on as it was begun.

    A run has not ended as long as a group waits to be told in its log.
    """
    row = conn.execute(
        """
        INSERT INTO store.retirement AS t (run_id, epoch, seq, samples)
        SELECT r.run_id, r.epoch, r.seq,
          (SELECT count(*) FROM store.sample s WHERE s.run_id = r.run_id)
        FROM store.run_state r WHERE r.run_id = %(run)s AND r.status = ANY(%(ended)s) AND NOT EXISTS (
          SELECT 1 FROM store.inbox i WHERE i.run_id = r.run_id AND i.body ->> 'kind' = 'group_settled')
        ON CONFLICT (run_id) DO UPDATE SET
          epoch = excluded.epoch, seq = excluded.seq, began_at = now(), ended_at = NULL,
          samples = CASE WHEN t.ended_at IS NULL THEN greatest(t.samples, t.gone_samples + excluded.samples)
                    ELSE t.gone_samples + excluded.samples END
        RETURNING run_id, epoch, samples
        """,
        {"run": run_id, "ended": _ENDED},
    ).fetchone()
    return None if row is None else Retirement(*row)


def _remove(conn: Connection, retirement: Retirement) -> None:
    """Drop a detached table, with an empty one in its place, or empty a run's part of a shared one."""
    run_id = retirement.run_id
    if partitions.has_own(conn, _SAMPLE, run_id):
        partitions.drop(conn, _SAMPLE, run_id)
        partitions.attach(conn, _SAMPLE, run_id)
    else:
        conn.execute("DELETE FROM store.sample WHERE run_id = %s", [run_id])
    conn.execute(
        "UPDATE store.segment SET retired_at = clock_timestamp() "
        "WHERE run_id = %s AND epoch <= %s AND retired_at IS NULL",
        [run_id, retirement.epoch],
    )
    conn.execute(
        "UPDATE store.retirement SET ended_at = clock_timestamp(), gone_seq = seq, gone_samples = samples "
        "WHERE run_id = %s",
        [run_id],
    )


def _take_back(conn: Connection, run_id: int) -> None:
    """Attach what a retirement detached: its run lives again. What earlier ones removed stays told."""
    begun = conn.execute(
        "UPDATE store.retirement SET ended_at = clock_timestamp(), seq = gone_seq, samples = gone_samples "
        "WHERE run_id = %s AND ended_at IS NULL",
        [run_id],
    )
    conn.execute("DELETE FROM store.retirement WHERE run_id = %s AND gone_seq = 0", [run_id])
    if begun.rowcount and partitions.is_detached(conn, _SAMPLE, run_id):
        partitions.attach_again(conn, _SAMPLE, run_id)


def _still_ended(conn: Connection, retirement: Retirement) -> bool:
    """Look again, and let nobody decide anything about the run until the transaction ends."""
    row = conn.execute(
        "SELECT epoch, status FROM store.run_state WHERE run_id = %s FOR UPDATE", [retirement.run_id]
    ).fetchone()
    return row is not None and row[0] == retirement.epoch and row[1] in _ENDED
