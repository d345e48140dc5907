"""Closed busy intervals of devices: what utilisation and bubble figures are made of.

Invariant: `ord` is gapless per child incarnation, so storing a batch twice changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.store.node_operations import both, for_nodes, own_device, own_lease, own_lease_of_run


@dataclass(frozen=True, slots=True)
class BusyInterval:
    """Times in seconds since the epoch, on the clock of the device's node."""

    ord: int
    phase: str
    policy: str
    t0: float
    t1: float
    tokens: int = 0
    bytes: int = 0
    """What was moved: the length of a suspended state."""
    steps: int = 0
    """Decode steps of an engine."""
    prompts: int = 0
    """Prompt tokens that an engine was handed before one of these steps."""
    cpu: float = 0.0
    """Processor seconds of the child in it; 0: not told."""


@dataclass(frozen=True, slots=True)
class DeviceInterval:
    device_id: str
    lease_id: int
    phase: str
    policy: str
    t0: float
    t1: float
    tokens: int


@dataclass(frozen=True, slots=True)
class BusySeconds:
    """Busy seconds of one device in one phase since a moment."""

    device_id: str
    lease_id: int
    phase: str
    seconds: float
    tokens: int


@for_nodes(both(own_lease_of_run("lease_id", "run_id"), own_device("device_id")))
def put(
    conn: Connection, run_id: int, lease_id: int, device_id: str, *, incarnation: str, rows: Sequence[BusyInterval]
) -> None:
    """Store closed intervals of one child. All devices of an engine work in them; what it moved counts once."""
    if not rows:
        return
    conn.execute(
        """
        INSERT INTO store.interval (lease_id, incarnation, ord, run_id, device_id, phase, policy, t0, t1, tokens,
          bytes, steps, prompts, cpu)
        SELECT l.id, %s, i.ord, %s, l.device_id, i.phase, i.policy, i.t0, i.t1, i.tokens * l.counts,
          i.bytes * l.counts, i.steps * l.counts, i.prompts * l.counts, i.cpu * l.counts
        FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::bigint[], %s::bigint[],
            %s::int[], %s::bigint[], %s::float8[])
          AS i(ord, phase, policy, t0, t1, tokens, bytes, steps, prompts, cpu),
          (SELECT %s::bigint, %s::text, 1 UNION ALL SELECT id, device_id, 0 FROM store.lease WHERE leader = %s)
          AS l(id, device_id, counts)
        ON CONFLICT DO NOTHING
        """,
        [
            incarnation, run_id, [r.ord for r in rows], [r.phase for r in rows],
            [r.policy for r in rows], [r.t0 for r in rows], [r.t1 for r in rows], [r.tokens for r in rows],
            [r.bytes for r in rows], [r.steps for r in rows], [r.prompts for r in rows], [r.cpu for r in rows],
            lease_id, device_id, lease_id,
        ],
    )  # fmt: skip


def between(conn: Connection, run_id: int | Sequence[int], since: float, until: float) -> list[DeviceInterval]:
    """List the intervals of some runs that touch a window, by device and time: clipped, tokens in proportion."""
    runs = [run_id] if isinstance(run_id, int) else list(run_id)
    rows = conn.execute(
        """
        SELECT device_id, lease_id, phase, policy, greatest(t0, %(since)s), least(t1, %(until)s),
          CASE WHEN t0 >= %(since)s AND t1 <= %(until)s THEN tokens
            ELSE round(tokens * (least(t1, %(until)s) - greatest(t0, %(since)s)) / nullif(t1 - t0, 0))::bigint END
        FROM store.interval WHERE run_id = ANY(%(run)s) AND t1 > %(since)s AND t0 < %(until)s ORDER BY device_id, t0
        """,
        {"run": runs, "since": since, "until": until},
    ).fetchall()
    return [DeviceInterval(*row) for row in rows]


def busy(conn: Connection, run_id: int, since: float) -> list[BusySeconds]:
    """Sum the busy seconds of a run's devices since a moment, by phase."""
    rows = conn.execute(
        """
        SELECT device_id, lease_id, phase, sum(t1 - greatest(t0, %(since)s))::float8, sum(tokens)::bigint
        FROM store.interval WHERE run_id = %(run)s AND t1 > %(since)s
        GROUP BY device_id, lease_id, phase ORDER BY device_id, lease_id, phase
        """,
        {"run": run_id, "since": since},
    ).fetchall()
    return [BusySeconds(*row) for row in rows]


def worked(conn: Connection, run_id: int, since: float, until: float) -> dict[str, tuple[float, float]]:
    """Return what a run's engines and trainers held and worked in a window: use -> (seconds held, seconds at work).

    Work is to generate, gradients and optimizer steps; of one child these never overlap.
    """
    rows = conn.execute(
        """
        SELECT l.use,
          sum(greatest(0, least(coalesce(extract(epoch FROM l.ended_at), %(until)s), %(until)s)
            - greatest(extract(epoch FROM l.granted_at), %(since)s)))::float8,
          sum(coalesce(w.seconds, 0))::float8
        FROM store.lease l LEFT JOIN LATERAL (
          SELECT sum(least(i.t1, %(until)s) - greatest(i.t0, %(since)s)) AS seconds FROM store.interval i
          WHERE i.run_id = l.run_id AND i.lease_id = l.id AND i.t1 > %(since)s AND i.t0 < %(until)s
            AND i.phase IN ('rollout', 'train', 'step')) w ON true
        WHERE l.run_id = %(run)s GROUP BY l.use
        """,
        {"run": run_id, "since": since, "until": until},
    ).fetchall()
    return {str(use): (float(held), float(busy)) for use, held, busy in rows}


@for_nodes(own_lease("lease_id"))
def newest_ord(conn: Connection, lease_id: int, incarnation: str) -> int:
    """Return the highest stored `ord` of a child, -1 when it has none."""
    row = conn.execute(
        "SELECT coalesce(max(ord), -1) FROM store.interval WHERE lease_id = %s AND incarnation = %s",
        [lease_id, incarnation],
    ).fetchone()
    assert row is not None
    return int(row[0])
