"""What engines and rollout workers are doing, as they tell it from time to time: for people alone.

Invariants: one statement per report; a report is of one slot of `SLOT_S` and takes the place of what was told in it
before, so a repetition changes nothing; the rings keep `KEPT_S` and never grow. Nothing decides by these rows, and
losing one loses a point of a chart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import orjson
from psycopg import Connection

from flexmarl.contracts.events import RequestedTurns
from flexmarl.store.node_operations import for_nodes, own_leases, run_with_work

SLOT_S = 2
"""Seconds of a slot: nobody tells more often."""
KEPT_S = 1800
SLOTS = KEPT_S // SLOT_S


def until_next(now: float) -> float:
    """Return the seconds to the middle of the next slot: of reports that wait for it no two share one."""
    return SLOT_S - (now - SLOT_S / 2) % SLOT_S


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine's own figures. Tokens are counted over its life; None: it does not know."""

    run_id: int
    lease_id: int
    incarnation: str
    running: int
    waiting: int
    slots: int
    generated: int
    prompts: int
    cached: int | None
    cache_use: float | None


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn without its reply."""

    role: str
    policy: str
    draw: int
    member: int
    attempt: int
    turn: int
    episode_since: float
    """Seconds since the epoch, on the clock of the rollout worker."""
    since: float
    """When it was asked for; the same clock."""
    tokens: int
    """Made so far, as far as its engine has told."""
    engine: str
    """Incarnation that it is at; empty while it waits for one."""
    moves: int


@dataclass(frozen=True, slots=True)
class TurnReport:
    """Open turns of one rollout worker, and the replies that changed engines since it started."""

    asked: Mapping[str, RequestedTurns]
    open: int
    """Turns without a reply."""
    longest: Sequence[OpenTurn]
    moved: Mapping[tuple[str, str], int]
    """(cause, engine that was left) -> replies."""
    seats: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Role -> (turns without a reply, those of them that an engine has)."""


@for_nodes(own_leases("loads"))
def put_engines(conn: Connection, loads: Sequence[EngineReport]) -> None:
    """Store what some engines told now; one that serves its lease no more is left out."""
    if not loads:
        return
    conn.execute(
        """
        INSERT INTO store.engine_load (run_id, slot, lease_id, incarnation, at, running, waiting, slots, generated,
          prompts, cached, cache_use)
        SELECT t.run_id, floor(extract(epoch FROM clock_timestamp()) / %s)::bigint %% %s, t.lease_id, t.incarnation,
          clock_timestamp(), t.running, t.waiting, t.slots, t.generated, t.prompts, t.cached, t.cache_use
        FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::int[], %s::int[], %s::bigint[],
            %s::bigint[], %s::bigint[], %s::real[])
          AS t(run_id, lease_id, incarnation, running, waiting, slots, generated, prompts, cached, cache_use)
        WHERE EXISTS (SELECT 1 FROM store.lease l WHERE l.id = t.lease_id AND l.incarnation = t.incarnation)
        ON CONFLICT (run_id, slot, lease_id) DO UPDATE SET incarnation = excluded.incarnation, at = excluded.at,
          running = excluded.running, waiting = excluded.waiting, slots = excluded.slots,
          generated = excluded.generated, prompts = excluded.prompts, cached = excluded.cached,
          cache_use = excluded.cache_use
        """,
        [SLOT_S, SLOTS, *([getattr(load, name) for load in loads] for name in EngineReport.__slots__)],
    )


@for_nodes(run_with_work("run_id"))
def put_asked(conn: Connection, run_id: int, worker: str, report: TurnReport) -> None:
    """Store what a rollout worker asks for now."""
    asked = sorted(report.asked.items())
    moved = sorted(report.moved.items())
    conn.execute(
        """
        WITH now AS (SELECT clock_timestamp() AS at), asked AS (
          INSERT INTO store.asked_load (run_id, slot, worker, policy, at, waiting, in_flight)
          SELECT %(run)s, floor(extract(epoch FROM now.at) / %(slot_s)s)::bigint %% %(slots)s, %(worker)s, a.policy,
            now.at, a.waiting, a.in_flight
          FROM now, unnest(%(policies)s::text[], %(waiting)s::int[], %(in_flight)s::int[])
            AS a(policy, waiting, in_flight)
          ON CONFLICT (run_id, slot, worker, policy) DO UPDATE SET at = excluded.at, waiting = excluded.waiting,
            in_flight = excluded.in_flight
        ), moved AS (
          INSERT INTO store.moved_turns AS m (run_id, worker, cause, engine, turns, at)
          SELECT %(run)s, %(worker)s, n.cause, n.engine, n.turns, now.at
          FROM now, unnest(%(causes)s::text[], %(engines)s::text[], %(turns)s::bigint[]) AS n(cause, engine, turns)
          ON CONFLICT (run_id, worker, cause, engine) DO UPDATE SET turns = excluded.turns, at = excluded.at
          WHERE m.turns < excluded.turns
        )
        INSERT INTO store.open_turns (run_id, worker, at, open, longest, seats)
        SELECT %(run)s, %(worker)s, now.at, %(open)s, %(longest)s::jsonb, %(seats)s::jsonb FROM now
        ON CONFLICT (run_id, worker) DO UPDATE SET at = excluded.at, open = excluded.open, longest = excluded.longest,
          seats = excluded.seats
        """,
        {
            "run": run_id, "worker": worker, "slot_s": SLOT_S, "slots": SLOTS, "open": report.open,
            "policies": [name for name, _ in asked], "waiting": [turns.waiting for _, turns in asked],
            "in_flight": [turns.in_flight for _, turns in asked], "causes": [cause for (cause, _), _ in moved],
            "engines": [engine for (_, engine), _ in moved], "turns": [turns for _, turns in moved],
            "longest": orjson.dumps([asdict(turn) for turn in report.longest]).decode(),
            "seats": orjson.dumps(dict(report.seats)).decode(),
        },
    )  # fmt: skip
