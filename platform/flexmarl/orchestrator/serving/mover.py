"""When a place on an engine goes from one policy to another, and which one. Pure: a snapshot in, moves out.

Invariants:
- A policy that is asked and has no engine gets the next place that may be given; whoever waits longest comes first.
- The last engine of a policy is taken only while nobody asks that policy; for a longer queue alone, only once nobody
  has for `hold_s`. A policy whose turns have all waited for `STUCK_S`, with all it is to hold loaded, counts as one
  that nobody asks: they wait for a version to come, which may need what others are asked.
- A move for a longer queue needs a disparity above `delta`. Its `use` is by how much the longest queue per engine gets
  shorter, in parts of what an engine out of nothing would do: it is `WORTH` at least, so no move is the reverse of one
  that was worth it. It must pay for the engine's load `PAYS` times over: a disparity is expected to last as long as it
  has lasted.
- A policy that was given a place gives none for a longer queue within `hold_s`: nothing moves to and fro.
- What moved is seen before more moves: a policy gains a part of what it lacks (`AT_ONCE`), then nothing for `SETTLE_S`;
  and a queue that empties by itself within `EMPTIES_S` gains nothing, for queues are what rates have left behind.
- A policy that gains again soon after it gave keeps what it has twice as long from then on (`held_s`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

PAYS = 2.0
"""How often the expected gain must cover the load."""
WORTH = 0.5
"""Least use of a move."""
STUCK_S = 10.0
"""How long turns wait for a version to come before their policy's place may be given to who waits for any."""
AT_ONCE = 0.75
"""Part of what a policy lacks that it may gain at once."""
SETTLE_S = 3.0
"""How long a queue takes to show what a move did to it."""
TO_AND_FRO = 1.5
"""A policy that gains within so many of its holds after it gave should have kept what it gave."""
CLEAR = 0.5
"""A queue that would still be so much shorter after it gave is short without a doubt."""
LONGEST = 16.0
"""Most that a hold grows, in parts of the stated one."""
EMPTIES_S = 10.0
"""A queue that empties in so many seconds as it shrinks now is short enough."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What one policy is asked for."""

    turns: int
    """Without a reply, now."""
    queue: float
    """The same, smoothed."""
    growth: float
    """Turns per second by which the queue grows."""
    load_s: float
    """What a load of it takes."""
    waiting_since: float | None
    """Since when it is asked and has no engine."""
    idle_since: float | None
    """Since when nobody asks it."""
    stuck_since: float | None
    """Since when all its turns wait although its engines hold all that they are to hold."""
    gained_at: float | None
    """When it was given another's place."""
    gave_at: float | None
    """When it gave a place for another's longer queue."""
    hold_s: float
    """How long it keeps a place it was moved to."""
    apart_since: float | None
    """Since when its queue is too long beside the shortest one."""


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """What moves are decided by."""

    now: float
    policies: Mapping[str, Asked]
    serves: Mapping[int, tuple[str, ...]]
    """Every engine that answers -> what it serves."""
    movable: frozenset[int]
    """Engines of which a place may change hands now: none of their places is being emptied."""
    depths: Mapping[int, int]


class Move(msgspec.Struct, frozen=True, gc=False):
    engine: int
    out: str
    into: str
    cause: str
    """`waiting` or `disparity`."""
    reason: str


class _Board:
    """The engines' sets while moves are chosen, one after the other."""

    def __init__(self, seen: Snapshot) -> None:
        self.seen = seen
        self.serves = {engine: list(own) for engine, own in seen.serves.items()}
        self.movable = set(seen.movable)
        self.counts = Counter(name for own in self.serves.values() for name in own)
        """Policy -> engines that serve it."""

    def count(self, name: str) -> int:
        return self.counts[name]

    def engine_of(self, out: str, into: str) -> int | None:
        """Return the engine with least to do that could serve one policy instead of another."""
        able = [e for e in self.movable if out in self.serves[e] and into not in self.serves[e]]
        return min(able, key=lambda e: (self.seen.depths.get(e, 0), e), default=None)

    def give(self, engine: int, out: str, into: str) -> None:
        own = self.serves[engine]
        own[own.index(out)] = into
        self.counts[out] -= 1
        self.counts[into] += 1
        self.movable.discard(engine)


def for_waiting(seen: Snapshot) -> list[Move]:
    """Give places to policies that are asked and have no engine, the longest waiting one first."""
    board = _Board(seen)
    waiting = [(asked.waiting_since, name) for name, asked in seen.policies.items() if asked.waiting_since is not None]
    moves = []
    for since, name in sorted(waiting):
        given = next(_givers(board, name), None)
        if given is None:
            break  # whoever waits longer has the next place
        engine, out = given
        board.give(engine, out, name)
        turns = seen.policies[name].turns
        reason = (
            f"{name} has no engine and {_turns(turns)} that {_waited(seen.now - since)}; "
            f"{out} has {_turns(seen.policies[out].turns)} on {_engines(board.count(out) + 1)}"
        )
        moves.append(Move(engine, out, name, "waiting", reason))
    return moves


def _waited(seconds: float) -> str:
    return f"waited {seconds:.1f} s" if seconds >= 0.05 else "arrived just now"


def _givers(board: _Board, into: str) -> Iterator[tuple[int, str]]:
    """List the places that may be given to a policy without any, those that are missed least first."""
    policies = board.seen.policies

    def missed(name: str) -> tuple[bool, bool, float, str]:
        asked, engines = policies[name], board.count(name)
        idle = asked.idle_since is not None
        return not idle, engines == 1, asked.idle_since or asked.turns / max(engines - 1, 1), name

    for name in sorted(policies, key=missed):
        engines = board.count(name)
        asked = policies[name]
        stuck = asked.stuck_since is not None and board.seen.now - asked.stuck_since >= STUCK_S
        if engines > 1 or (engines == 1 and (asked.turns == 0 or stuck)):
            engine = board.engine_of(name, into)
            if engine is not None:
                yield engine, name


def held_s(asked: Asked, now: float, hold_s: float) -> float:
    """Return how long a policy that gains a place now keeps its places: longer if it gave one just before."""
    to_and_fro = asked.gave_at is not None and now - asked.gave_at < TO_AND_FRO * asked.hold_s
    return min(2.0 * asked.hold_s, LONGEST * hold_s) if to_and_fro else hold_s


def too_long(queues: Mapping[str, float], counts: Mapping[str, int], delta: float) -> set[str]:
    """Return the policies whose queue per engine exceeds the shortest one by more than `delta`; `counts`: engines."""
    per_engine = {name: queue / counts[name] for name, queue in queues.items() if counts.get(name)}
    shortest = min(per_engine.values(), default=0.0)
    return {name for name, queue in per_engine.items() if queue - shortest > delta}


def for_balance(seen: Snapshot, delta: float, hold_s: float) -> list[Move]:
    """Give places to policies with long queues, at the cost of those with short ones, as long as it pays."""
    if any(asked.waiting_since is not None for asked in seen.policies.values()):
        return []  # the next place that may be given is theirs
    board = _Board(seen)
    moves: list[Move] = []
    per_engine = _per_engine(board)
    for hottest in sorted(per_engine, key=lambda name: (-per_engine[name], name)):
        if _may_gain(seen, hottest):
            for _ in range(_at_once(board, hottest)):
                move = _to(board, hottest, delta, hold_s)
                if move is None:
                    break
                board.give(move.engine, move.out, move.into)
                moves.append(move)
        if moves:
            break  # one queue at a time: what the others look like is changed by it
    return moves


def _at_once(board: _Board, name: str) -> int:
    """Return how many places a policy may gain now: most of what its part of all queues says that it lacks."""
    places = sum(len(own) for own in board.serves.values())
    part = board.seen.policies[name].queue / max(sum(asked.queue for asked in board.seen.policies.values()), 1.0)
    return max(1, round((part * places - board.count(name)) * AT_ONCE))


def _may_gain(seen: Snapshot, name: str) -> bool:
    """Tell whether a policy's queue shows what moved last, and does not empty by itself."""
    asked = seen.policies[name]
    moved = max(asked.gained_at or 0.0, asked.gave_at or 0.0)
    return seen.now - moved >= SETTLE_S and asked.queue + asked.growth * EMPTIES_S > 0.0


def _to(board: _Board, hottest: str, delta: float, hold_s: float) -> Move | None:
    """Return the move that gives a policy one engine more, None when none pays."""
    seen, per_engine = board.seen, _per_engine(board)
    asked, engines, before = seen.policies[hottest], board.count(hottest), per_engine[hottest]
    for coldest in sorted(per_engine, key=lambda name: (per_engine[name], name)):
        if before - per_engine[coldest] <= delta:
            return None
        engine = board.engine_of(coldest, hottest) if _may_give(board, coldest, hold_s) else None
        if engine is None:
            continue
        left = board.count(coldest) - 1
        own, others = asked.queue / (engines + 1), seen.policies[coldest].queue / left if left else 0.0
        if others > CLEAR * own and _holds(seen, coldest):
            continue
        use = (1.0 - max(own, others) / before) * (engines + 1)
        lasted = 0.0 if asked.apart_since is None else seen.now - asked.apart_since
        if use < WORTH or use * lasted < PAYS * asked.load_s:
            continue
        reason = (
            f"{_said(seen, board, hottest)}, {_said(seen, board, coldest)}: {before - per_engine[coldest]:.1f} apart, "
            f"above {delta:g} for {lasted:.1f} s; "
            f"gains {100 * use:.0f} % of an engine, a load takes {asked.load_s:.2f} s"
        )
        return Move(engine, coldest, hottest, "disparity", reason)
    return None


def _holds(seen: Snapshot, name: str) -> bool:
    """Tell whether a policy that went to and fro keeps what it has, but for a queue that is longer without a doubt."""
    asked = seen.policies[name]
    return asked.gained_at is not None and seen.now - asked.gained_at < asked.hold_s


def _may_give(board: _Board, name: str, hold_s: float) -> bool:
    seen = board.seen
    asked = seen.policies[name]
    if asked.gained_at is not None and seen.now - asked.gained_at < hold_s:
        return False
    if board.count(name) > 1:
        return True
    return asked.turns == 0 and asked.idle_since is not None and seen.now - asked.idle_since >= hold_s


def _per_engine(board: _Board) -> dict[str, float]:
    """Return the smoothed queue per engine of each policy that has one."""
    counts = {name: board.count(name) for name in board.seen.policies}
    return {name: asked.queue / counts[name] for name, asked in board.seen.policies.items() if counts[name]}


def _said(seen: Snapshot, board: _Board, name: str) -> str:
    return f"{name} has {_turns(round(seen.policies[name].queue))} on {_engines(board.count(name))}"


def _engines(number: int) -> str:
    return f"{number} engine{'' if number == 1 else 's'}"


def _turns(number: int) -> str:
    return f"{number} turn{'' if number == 1 else 's'}"
