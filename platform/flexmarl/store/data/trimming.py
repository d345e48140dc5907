"""Tokens of training trajectories that a run's setting does not keep leave once nothing can train them any more.

Invariants: a row stays as it is but for its payload, so every account still holds. A payload leaves only when its
micro-batch is applied by a step that lies `MARGIN` versions behind the newest training state that is durable, and as
many more as replay reaches back: further back no step is ever redone, and no row trained again. Which groups stay is a
function of their draw, so a group stays whole or goes whole, and whoever asks again gets the same answer. Evaluations
stay whole. Payloads below `LEAST_BYTES` stay too: their rows would take as much without them. Room in a segment file is
given back by holes in it, where the file lies on this machine and its file system knows holes; else it is given back
with the file.
"""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from psycopg import Connection

from flexmarl.store.data.payload import SIZE
from flexmarl.store.data.segments import run_folder, segment_file

MARGIN = 3
"""Versions behind the newest durable training state whose rows stay: as many states as trainers keep."""
LEAST_BYTES = 512
MICRO_BATCHES = 64
"""Micro-batches that one transaction looks at."""
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01

_DUE = """
WITH durable AS (
  SELECT policy, max(version) AS version FROM store.policy_version
  WHERE run_id = %(run)s AND state <> '' GROUP BY policy
), settled AS (
  SELECT m.policy, m.no, m.keys FROM store.micro_batch m JOIN durable d USING (policy)
    LEFT JOIN store.trimming t ON t.run_id = m.run_id AND t.policy = m.policy
  WHERE m.run_id = %(run)s AND m.status = 'applied' AND m.version <= d.version - %(margin)s
    AND m.no > coalesce(t.no, -1) AND m.no < coalesce((
      SELECT min(o.no) FROM store.micro_batch o WHERE o.run_id = m.run_id AND o.policy = m.policy
        AND (o.status IN ('cut', 'accumulated') OR o.status = 'applied' AND o.version > d.version - %(margin)s)),
      2147483647)
  ORDER BY m.policy, m.no LIMIT %(most)s
)
SELECT policy, no, keys::text FROM settled"""

_TRIM = f"""
UPDATE store.sample s SET payload = NULL, segment = NULL, seg_offset = NULL, digest = NULL
FROM (
  SELECT o.ctid AS place, o.tableoid AS leaf, o.segment, o.seg_offset,
    {SIZE.format("o")} AS size
  FROM jsonb_array_elements(%(keys)s::jsonb) AS k(key), LATERAL (
    SELECT ctid, tableoid, * FROM store.sample o
    WHERE o.run_id = %(run)s AND o.draw = (k.key ->> 0)::int AND o.member = (k.key ->> 1)::int
      AND o.attempt = (k.key ->> 2)::int AND o.role = k.key ->> 3 AND o.turn = (k.key ->> 4)::int
    LIMIT 1) o
  WHERE (o.draw::bigint * 2654435761) %% 4294967296 >= %(share)s::float8 * 4294967296
    AND num_nonnulls(o.payload, o.segment) = 1
) f
WHERE s.run_id = %(run)s AND s.ctid = f.place AND s.tableoid = f.leaf AND f.size >= %(least)s
RETURNING f.segment, f.seg_offset, f.size"""


@dataclass(frozen=True, slots=True)
class Trimmed:
    payloads: int
    bytes: int
    more: bool
    """Whether there may be more to do."""


def runs_with_a_share(conn: Connection) -> list[tuple[int, float, int]]:
    """List the runs that keep a share of their training trajectories and have something to look at.

    Each with the share, and with the versions for which replay may still take a row that was trained.
    """
    rows = conn.execute(
        """
        SELECT r.run_id, (r.spec #>> '{trajectories,training_share}')::float8, CASE WHEN
          r.spec #>> '{sampling,replay,type}' IN ('archive', 'rescue')
          THEN (r.spec #>> '{sampling,replay,max_age}')::int ELSE 0 END
        FROM store.run_state r
        WHERE (r.spec #>> '{trajectories,training_share}')::float8 < 1 AND EXISTS (
          SELECT 1 FROM store.micro_batch m LEFT JOIN store.trimming t ON t.run_id = m.run_id AND t.policy = m.policy
          WHERE m.run_id = r.run_id AND m.status = 'applied' AND m.no > coalesce(t.no, -1))
          AND NOT EXISTS (SELECT 1 FROM store.retirement g WHERE g.run_id = r.run_id)
        ORDER BY 1
        """
    ).fetchall()
    return [(row[0], row[1], row[2]) for row in rows]


def trim(conn: Connection, run_id: int, share: float, replayed_for: int = 0) -> Trimmed:
    """Let go of the payloads of some micro-batches, in one transaction of its own."""
    with conn.transaction():
        due = conn.execute(
            _DUE.encode(), {"run": run_id, "margin": MARGIN + replayed_for, "most": MICRO_BATCHES}
        ).fetchall()
        holes: dict[int, list[tuple[int, int]]] = {}
        count = size = 0
        for policy, no, keys in due:
            which = {"run": run_id, "keys": keys, "share": share, "least": LEAST_BYTES}
            rows = conn.execute(_TRIM.encode(), which).fetchall()
            for segment, offset, length in rows:
                if segment is not None:
                    holes.setdefault(segment, []).append((offset, length))
            taken = sum(row[2] for row in rows)
            count, size = count + len(rows), size + taken
            conn.execute(
                "INSERT INTO store.trimming AS t (run_id, policy, no, payloads, bytes) VALUES (%s, %s, %s, %s, %s) "
                "ON CONFLICT (run_id, policy) DO UPDATE SET no = excluded.no,"
                " payloads = t.payloads + excluded.payloads, bytes = t.bytes + excluded.bytes",
                [run_id, policy, no, len(rows), taken],
            )
        files = _files(conn, run_id, holes)
    for path, ranges in files:  # behind the commit: what a row still names is never a hole
        _punch(path, ranges)
    return Trimmed(count, size, len(due) == MICRO_BATCHES)


def _files(
    conn: Connection, run_id: int, holes: dict[int, list[tuple[int, int]]]
) -> list[tuple[Path, list[tuple[int, int]]]]:
    """Find the files of segments that lie on this machine."""
    rows = conn.execute(
        "SELECT s.id, p.path FROM store.segment s JOIN store.payload_place p USING (place) WHERE s.id = ANY(%s)",
        [list(holes)],
    ).fetchall()
    return [(Path(root) / run_folder(run_id) / segment_file(number), holes[number]) for number, root in rows]


def _punch(path: Path, ranges: Sequence[tuple[int, int]]) -> None:
    """Give the room of ranges of a file back; without a file or a system that knows holes it stays taken."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for offset, length in _joined(ranges):
            if _libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length) != 0:
                return
    finally:
        os.close(descriptor)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join adjacent ranges: only whole blocks of the file system are given back."""
    joined: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        if joined and joined[-1][0] + joined[-1][1] == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((offset, length))
    return joined


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
