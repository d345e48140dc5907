"""Demand against engines over time, as reports and log tell it: queues, the longest open turns, replies that moved.

Reads only; every query carries the run. A window ends now or, of an ended run, at its end; a point averages what was
told in its part of the window, and a part in which nobody told anything has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.store.telemetry.load_reports import KEPT_S, SLOT_S, SLOTS, OpenTurn

POINTS = 150
"""Most that a window is divided into."""
FRESH_S = 3.0 * SLOT_S
"""What a rollout worker told counts as its present for so long."""


@dataclass(frozen=True, slots=True)
class QueuePoint:
    """All engines in one part of a window; `skew` is the longest queue over the mean one, None without any request."""

    at: float
    engines: int
    running: float
    waiting: float
    longest: float
    skew: float | None


@dataclass(frozen=True, slots=True)
class RequestedPoint:
    """One policy in one part of a window."""

    at: float
    policy: str
    waiting: float
    in_flight: float


@dataclass(frozen=True, slots=True)
class RequestedNow:
    policy: str
    waiting: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class OpenTurnRows:
    """What rollout workers wait for now. `told`: whether any has said anything lately."""

    told: bool
    open: int
    longest: list[OpenTurn]


@dataclass(frozen=True, slots=True)
class Moved:
    """Replies that left an engine for one cause, over the whole run."""

    cause: str
    engine: str
    turns: int
    at: float
    """The last time it was told that there are more."""


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """Seconds since the epoch; parts are as long as makes at most `POINTS` of them."""

    since: float
    until: float
    live: bool = False
    """Whether more may be told of the last part: it is left out until it is whole."""

    @property
    def part_s(self) -> float:
        return float(max(SLOT_S, -(-(self.until - self.since) // (POINTS * SLOT_S)) * SLOT_S))


def window(conn: Connection, seconds: float, until: float | None) -> LoadWindow:
    """Return the window that ends now, or at the end of a run."""
    row = conn.execute("SELECT coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8)", [until]).fetchone()
    assert row is not None
    return LoadWindow(row[0] - min(seconds, KEPT_S), row[0], live=until is None)


_SLOTS = """
  SELECT DISTINCT ((floor(%(until)s::float8 / %(slot_s)s) - back)::bigint %% %(slots)s)::int AS slot
  FROM generate_series(0, %(most)s) AS back
"""


def _asked_of(own: LoadWindow, run_id: int) -> dict[str, object]:
    """Return the arguments of a window's queries; the last part of a run that goes on is left out while it is short."""
    most = min(SLOTS - 1, int((own.until - own.since) / SLOT_S) + 1)
    cut = own.live and own.part_s > SLOT_S
    until = own.until // own.part_s * own.part_s if cut else own.until
    return {
        "run": run_id, "since": own.since, "until": until, "part": own.part_s, "slot_s": SLOT_S, "slots": SLOTS,
        "most": most,
    }  # fmt: skip


def queues(conn: Connection, run_id: int, own: LoadWindow) -> list[QueuePoint]:
    """Read the engines' queues over a window, oldest first."""
    rows = conn.execute(
        f"""
        SELECT part * %(part)s, count(*)::int, sum(running)::float8, sum(waiting)::float8,
          max(running + waiting)::float8,
          (max(running + waiting) / nullif(avg(running + waiting), 0))::float8
        FROM (
          SELECT floor(extract(epoch FROM e.at) / %(part)s) AS part, e.lease_id, avg(e.running) AS running,
            avg(e.waiting) AS waiting
          FROM ({_SLOTS}) s JOIN store.engine_load e ON e.run_id = %(run)s AND e.slot = s.slot
          WHERE e.at > to_timestamp(%(since)s) AND e.at <= to_timestamp(%(until)s)
          GROUP BY 1, 2
        ) q GROUP BY part ORDER BY part
        """.encode(),
        _asked_of(own, run_id),
    ).fetchall()
    return [QueuePoint(float(row[0]), *row[1:]) for row in rows]


def asked(conn: Connection, run_id: int, own: LoadWindow) -> list[RequestedPoint]:
    """Read what was asked of each policy over a window, oldest first; a slot that no worker told of counts as none."""
    rows = conn.execute(
        f"""
        SELECT part * %(part)s, policy, sum(waiting)::float8 / %(each)s, sum(in_flight)::float8 / %(each)s
        FROM (
          SELECT floor(extract(epoch FROM a.at) / %(part)s) AS part, a.policy, a.waiting, a.in_flight
          FROM ({_SLOTS}) s JOIN store.asked_load a ON a.run_id = %(run)s AND a.slot = s.slot
          WHERE a.at > to_timestamp(%(since)s) AND a.at <= to_timestamp(%(until)s)
        ) q GROUP BY part, policy ORDER BY part, policy
        """.encode(),
        {**_asked_of(own, run_id), "each": own.part_s / SLOT_S},
    ).fetchall()
    return [RequestedPoint(float(row[0]), *row[1:]) for row in rows]


def asked_now(conn: Connection, run_id: int) -> list[RequestedNow]:
    """Read what rollout workers ask of each policy, as each of them told last."""
    rows = conn.execute(
        f"""
        SELECT policy, sum(waiting)::int, sum(in_flight)::int FROM (
          SELECT DISTINCT ON (a.worker, a.policy) a.policy, a.waiting, a.in_flight, a.at, o.at AS last
          FROM (
            SELECT DISTINCT ((floor(extract(epoch FROM clock_timestamp()) / %(slot_s)s) - back)::bigint
              %% %(slots)s)::int AS slot FROM generate_series(0, %(most)s) AS back
          ) s JOIN store.asked_load a ON a.run_id = %(run)s AND a.slot = s.slot
            JOIN store.open_turns o ON o.run_id = a.run_id AND o.worker = a.worker AND o.at = a.at
          WHERE a.at > clock_timestamp() - make_interval(secs => {FRESH_S})
          ORDER BY a.worker, a.policy, a.at DESC
        ) q GROUP BY policy
        """.encode(),
        {"run": run_id, "slot_s": SLOT_S, "slots": SLOTS, "most": int(FRESH_S / SLOT_S) + 1},
    ).fetchall()
    return [RequestedNow(*row) for row in rows]


def open_turns(conn: Connection, run_id: int, limit: int) -> OpenTurnRows:
    """Read the turns that have waited longest for their reply."""
    rows = conn.execute(
        "SELECT open, longest FROM store.open_turns WHERE run_id = %s AND at > clock_timestamp() - "
        "make_interval(secs => %s)",
        [run_id, FRESH_S],
    ).fetchall()
    turns = sorted((OpenTurn(**turn) for _, longest in rows for turn in longest), key=lambda turn: turn.since)
    return OpenTurnRows(bool(rows), sum(row[0] for row in rows), turns[:limit])


def seats(conn: Connection, run_id: int) -> dict[str, tuple[int, int]] | None:
    """Count open turns by role, and those that engines have; None where no worker has told anything lately."""
    rows = conn.execute(
        """
        SELECT s.role, sum((s.turns ->> 0)::int)::int, sum((s.turns ->> 1)::int)::int
        FROM store.open_turns o LEFT JOIN LATERAL jsonb_each(o.seats) AS s(role, turns) ON true
        WHERE o.run_id = %s AND o.at > clock_timestamp() - make_interval(secs => %s) GROUP BY s.role
        """,
        [run_id, FRESH_S],
    ).fetchall()
    return {role: (turns, taken) for role, turns, taken in rows if role is not None} if rows else None


def moved(conn: Connection, run_id: int) -> list[Moved]:
    """Count the replies that did not stay with the engine that took them, by cause and engine, most first."""
    rows: Sequence[tuple[str, str, int, float]] = conn.execute(
        """
        SELECT cause, engine, sum(turns)::bigint, extract(epoch FROM max(at))::float8
        FROM store.moved_turns WHERE run_id = %s GROUP BY cause, engine ORDER BY sum(turns) DESC, cause, engine
        """,
        [run_id],
    ).fetchall()
    return [Moved(*row) for row in rows]
