"""What a run asked of its workers over time: spans of commands, of pauses, and of leases.

Invariants: a span begins when its command was written and ends when it was settled, both on the database's clock; a
void command asked for nothing and has no span. Reads only; every query carries the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

LOOK_BACK_S = 900.0
"""How long before a window a command of it may have been written. Longer ones show from there on."""
WARM_STEPS = 3
"""Steps of a run that do not count towards its speed: an engine takes new memory with each of its first versions.
Of a run of no more than twice as many only the first one is left out."""
WORK = ("play_groups", "accumulate", "optimizer_step", "load_weights", "bind_policy", "write_checkpoint")
"""Commands whose spans explain what devices wait for."""


@dataclass(frozen=True, slots=True)
class CommandSpan:
    """Times in seconds since the epoch; `t1` is None while the command is not settled."""

    no: int
    kind: str
    policy: str
    lease_id: int
    origin: str
    cohort: int
    micro_batch: int
    t0: float
    taken: float | None
    t1: float | None
    status: str
    version: int = -1
    """Version that an optimizer step makes or that an engine loads, -1 for others."""


@dataclass(frozen=True, slots=True)
class LeaseSpan:
    """How long a run held a device; `first_busy` is when its child closed its first interval's beginning."""

    lease_id: int
    device_id: str
    node: str
    kind: str
    pool: str
    use: str
    state: str
    run_id: int
    since: float
    until: float | None
    first_busy: float | None
    leader: int = 0
    """Of a further device of an engine: the lease that its child serves; 0: it is that lease itself."""

    @property
    def served(self) -> int:
        """Return the lease that the child on the device serves."""
        return self.leader or self.lease_id


@dataclass(frozen=True, slots=True)
class LeaseHistory:
    """All leases of a run, and the database's clock when they were read."""

    now: float
    spans: list[LeaseSpan]


def commands_between(
    conn: Connection, run_id: int, since: float, until: float, kinds: Sequence[str] = WORK
) -> list[CommandSpan]:
    """List the spans of a run's commands that touch a window, oldest first."""
    return asked_between(conn, [run_id], since, until, kinds)[run_id]


def asked_between(
    conn: Connection, run_ids: Sequence[int], since: float, until: float, kinds: Sequence[str] = WORK
) -> dict[int, list[CommandSpan]]:
    """List the spans of commands that touch a window, oldest first, for each of some runs."""
    rows = conn.execute(
        """
        SELECT run_id, no, kind, coalesce(body->>'policy', ''), coalesce(lease_id, 0), coalesce(body->>'origin', ''),
          coalesce((body->>'cohort')::int, -1), coalesce((body->>'micro_batch')::int, -1),
          extract(epoch FROM created_at)::float8, extract(epoch FROM taken_at)::float8,
          extract(epoch FROM done_at)::float8, status,
          coalesce((body->>'next_version')::int, (body->>'version')::int, -1)
        FROM store.command
        WHERE run_id = ANY(%(runs)s) AND created_at > to_timestamp(%(since)s - %(back)s)
          AND created_at < to_timestamp(%(until)s) AND (done_at IS NULL OR done_at > to_timestamp(%(since)s))
          AND status <> 'void' AND kind = ANY(%(kinds)s)
        ORDER BY run_id, no
        """,
        {"runs": list(run_ids), "since": since, "until": until, "back": LOOK_BACK_S, "kinds": list(kinds)},
    ).fetchall()
    found: dict[int, list[CommandSpan]] = {run_id: [] for run_id in run_ids}
    for run_id, *row in rows:
        found[run_id].append(CommandSpan(*row))
    return found


def pauses(conn: Connection, run_id: int) -> list[tuple[float, float | None]]:
    """List when people held a run, as (from, to); the last may be open."""
    return pauses_of(conn, [run_id])[run_id]


def pauses_of(conn: Connection, run_ids: Sequence[int]) -> dict[int, list[tuple[float, float | None]]]:
    """List when people held each of some runs."""
    rows = conn.execute(
        """
        SELECT run_id, body->>'verb', extract(epoch FROM at)::float8 FROM store.event
        WHERE run_id = ANY(%s) AND kind = 'run_verb' ORDER BY run_id, seq
        """,
        [list(run_ids)],
    ).fetchall()
    verbs: dict[int, list[tuple[str, float]]] = {run_id: [] for run_id in run_ids}
    for run_id, verb, at in rows:
        verbs[run_id].append((verb, at))
    return {run_id: _held(own) for run_id, own in verbs.items()}


def _held(verbs: Sequence[tuple[str, float]]) -> list[tuple[float, float | None]]:
    """Pair each pause with the verb that ended it."""
    found: list[tuple[float, float | None]] = []
    since: float | None = None
    for verb, at in verbs:
        if verb == "pause":
            since = at if since is None else since
        elif since is not None:
            found.append((since, at))
            since = None
    return found if since is None else [*found, (since, None)]


_LEASE = """l.id, l.device_id, d.node, d.kind, d.pool, l.use, l.state, l.run_id,
  extract(epoch FROM l.granted_at)::float8, extract(epoch FROM l.ended_at)::float8,
  (SELECT i.t0 FROM store.interval i WHERE i.lease_id = l.id ORDER BY i.incarnation, i.ord LIMIT 1),
  coalesce(l.leader, 0)"""


def leases_of(conn: Connection, run_id: int) -> LeaseHistory:
    """Read all leases that a run has had, by node and device."""
    rows = conn.execute(
        f"""
        SELECT extract(epoch FROM clock_timestamp())::float8, {_LEASE}
        FROM (VALUES (%s::bigint)) AS r (run_id)
        LEFT JOIN store.lease l USING (run_id) LEFT JOIN store.device d ON d.id = l.device_id
        ORDER BY d.node, d.kind, d.ordinal, l.id
        """,
        [run_id],
    ).fetchall()
    return LeaseHistory(float(rows[0][0]), [LeaseSpan(*row[1:]) for row in rows if row[1] is not None])


def leases_between(conn: Connection, run_ids: Sequence[int] | None, since: float, until: float) -> list[LeaseSpan]:
    """List the leases of some runs (None: of all) that touch a window, by node and device."""
    rows = conn.execute(
        f"""
        SELECT {_LEASE}
        FROM store.lease l JOIN store.device d ON d.id = l.device_id
        WHERE (%(runs)s::bigint[] IS NULL OR l.run_id = ANY(%(runs)s)) AND l.granted_at < to_timestamp(%(until)s)
          AND (l.ended_at IS NULL OR l.ended_at > to_timestamp(%(since)s))
        ORDER BY d.node, d.kind, d.ordinal, l.id
        """,
        {"runs": None if run_ids is None else list(run_ids), "since": since, "until": until},
    ).fetchall()
    return [LeaseSpan(*row) for row in rows]


def step_window(conn: Connection, run_id: int, step: int) -> tuple[float, float] | None:
    """Return when a train step began and when its weights were served; None before it is done."""
    row = conn.execute(
        """
        SELECT extract(epoch FROM at)::float8 - value, extract(epoch FROM at)::float8 FROM store.metric
        WHERE run_id = %s AND name = 'time/step' AND agent = '' AND stat = 'mean' AND step = %s
        """,
        [run_id, step],
    ).fetchone()
    return None if row is None else (float(row[0]), float(row[1]))


def served_steps(conn: Connection, run_id: int) -> tuple[float, float, int] | None:
    """Return from when to when a run's train steps count, and how many: those behind the warm ones."""
    rows = conn.execute(
        """
        SELECT extract(epoch FROM at)::float8 FROM store.metric
        WHERE run_id = %s AND name = 'time/step' AND agent = '' AND stat = 'mean' ORDER BY at
        """,
        [run_id],
    ).fetchall()
    counted = [float(at) for (at,) in rows][(WARM_STEPS if len(rows) > 2 * WARM_STEPS else 1) - 1 :]
    return (counted[0], counted[-1], len(counted) - 1) if len(counted) > 1 else None


def newest_steps(conn: Connection, run_id: int, most: int) -> tuple[float, float, int] | None:
    """Return from when to when a run's newest steps went on, and how many; behind the warm ones, `most` of them."""
    rows = conn.execute(
        """
        SELECT step, extract(epoch FROM at)::float8 FROM store.metric
        WHERE run_id = %s AND name = 'time/step' AND agent = '' AND stat = 'mean' ORDER BY step DESC LIMIT %s
        """,
        [run_id, most + 1],
    ).fetchall()
    ends = [float(at) for step, at in reversed(rows) if step >= WARM_STEPS]
    return (ends[0], ends[-1], len(ends) - 1) if len(ends) > 1 else None


def steps_between(conn: Connection, run_id: int, since: float, until: float) -> list[tuple[int, float, float]]:
    """List (step, begin, end) of the finished steps that touch a window."""
    rows = conn.execute(
        """
        SELECT step, extract(epoch FROM at)::float8 - value, extract(epoch FROM at)::float8 FROM store.metric
        WHERE run_id = %s AND name = 'time/step' AND agent = '' AND stat = 'mean' AND at > to_timestamp(%s)
          AND at - make_interval(secs => value) < to_timestamp(%s)
        ORDER BY step
        """,
        [run_id, since, until],
    ).fetchall()
    return [(int(step), float(begin), float(end)) for step, begin, end in rows]
