"""Places follow the queues of turns, as long as it pays.

Invariants:
- The last engine of a policy is taken only once nobody has asked that policy for `LAST` times its hold.
- A move needs a disparity above `delta`. Its `use` is by how much the longest queue per engine gets shorter, in parts
  of what an engine out of nothing would do: it is `WORTH` at least, so no move is the reverse of one that was worth it.
  It must pay for the engine's load `PAYS` times over: a disparity is expected to last as long as it has lasted.
- A policy that was given a place gives none within its hold, `hold_s` or as long as `STINT_LOADS` of its loads:
  nothing moves to and fro.
- What moved is seen before more moves: a policy gains a part of what it lacks (`AT_ONCE`), then nothing for `SETTLE_S`;
  and a queue that empties by itself within `EMPTIES_S` gains nothing, for queues are what rates have left behind.
- A policy that gains again soon after it gave keeps what it has twice as long from then on.
"""

from collections.abc import Mapping

from flexmarl.algorithms.movers.base import Move, Mover, PolicyDemand, Snapshot
from flexmarl.algorithms.movers.board import Board, engines_text, turns_text
from flexmarl.contracts.specification.movers import DemandMoverOptions

PAYS = 2.0
"""How often the expected gain must cover the load."""
STINT_LOADS = 5.0
"""A place that comes back before it was there for so many times what its load took went to and fro."""
WORTH = 0.5
"""Least use of a move."""
AT_ONCE = 0.75
"""Part of what a policy lacks that it may gain at once."""
SETTLE_S = 3.0
"""How long a queue takes to show what a move did to it."""
TO_AND_FRO = 1.5
"""A policy that gains within so many of its holds after it gave should have kept what it gave."""
CLEAR = 0.5
"""A queue that would still be so much shorter after it gave is short without a doubt."""
LAST = 5.0
"""How many holds nobody has asked a policy for that gives its last place: whoever is asked again wants it back."""
LONGEST = 16.0
"""Most that a hold grows, in parts of the stated one."""
EMPTIES_S = 10.0
"""A queue that empties in so many seconds as it shrinks now is short enough."""


class DemandMover(Mover[DemandMoverOptions]):
    Options = DemandMoverOptions

    def too_long(self, queues: Mapping[str, float], engines: Mapping[str, int]) -> set[str]:
        """Return the policies whose queue per engine exceeds the shortest one by more than `delta`."""
        per_engine = {name: queue / engines[name] for name, queue in queues.items() if engines.get(name)}
        shortest = min(per_engine.values(), default=0.0)
        return {name for name, queue in per_engine.items() if queue - shortest > self.options.delta}

    def keeps_s(self, asked: PolicyDemand, now: float) -> float:
        """Return `hold_s`, or more for a policy that gave a place just before it gains one."""
        before = self._held_s(asked)
        to_and_fro = asked.gave_at is not None and now - asked.gave_at < TO_AND_FRO * before
        least = self._least_s(asked)
        return min(2.0 * before, LONGEST * least) if to_and_fro else least

    def moves(self, seen: Snapshot) -> list[Move]:
        """Give places to policies with long queues, at the cost of those with short ones, as long as it pays."""
        if any(asked.waiting_since is not None for asked in seen.policies.values()):
            return []  # the next place that may be given is theirs
        board = Board(seen)
        moves: list[Move] = []
        per_engine = _per_engine(board)
        for hottest in sorted(per_engine, key=lambda name: (-per_engine[name], name)):
            if _may_gain(seen, hottest):
                for _ in range(_at_once(board, hottest)):
                    move = self._to(board, hottest)
                    if move is None:
                        break
                    board.give(move.engine, move.out, move.into)
                    moves.append(move)
            if moves:
                break  # one queue at a time: what the others look like is changed by it
        return moves

    def _to(self, board: Board, hottest: str) -> Move | None:
        """Return the move that gives a policy one engine more, None when none pays."""
        delta, seen, per_engine = self.options.delta, board.seen, _per_engine(board)
        asked, engines, before = seen.policies[hottest], board.count(hottest), per_engine[hottest]
        for coldest in sorted(per_engine, key=lambda name: (per_engine[name], name)):
            if before - per_engine[coldest] <= delta:
                return None
            engine = board.engine_of(coldest, hottest) if self._may_give(board, coldest) else None
            if engine is None:
                continue
            left = board.count(coldest) - 1
            own, others = asked.queue / (engines + 1), seen.policies[coldest].queue / left if left else 0.0
            if others > CLEAR * own and self._holds(seen, coldest):
                continue
            use = (1.0 - max(own, others) / before) * (engines + 1)
            lasted = 0.0 if asked.apart_since is None else seen.now - asked.apart_since
            if use < WORTH or use * lasted < PAYS * asked.load_s:
                continue
            reason = (
                f"{_said(seen, board, hottest)}, {_said(seen, board, coldest)}: "
                f"{before - per_engine[coldest]:.1f} apart, above {delta:g} for {lasted:.1f} s; "
                f"gains {100 * use:.0f} % of an engine, a load takes {asked.load_s:.2f} s"
            )
            return Move(engine, coldest, hottest, "disparity", reason)
        return None

    def _holds(self, seen: Snapshot, name: str) -> bool:
        """Tell whether a policy that went to and fro keeps what it has, unless a queue is longer without a doubt."""
        asked = seen.policies[name]
        return asked.gained_at is not None and seen.now - asked.gained_at < self._held_s(asked)

    def _may_give(self, board: Board, name: str) -> bool:
        seen = board.seen
        asked = seen.policies[name]
        hold_s = self._least_s(asked)
        if asked.gained_at is not None and seen.now - asked.gained_at < hold_s:
            return False
        if board.count(name) > 1:
            return True
        return asked.turns == 0 and asked.idle_since is not None and seen.now - asked.idle_since >= LAST * hold_s

    def _held_s(self, asked: PolicyDemand) -> float:
        return self._least_s(asked) if asked.hold_s is None else asked.hold_s

    def _least_s(self, asked: PolicyDemand) -> float:
        """Return how long a policy keeps what it is given at least: a place has to be worth the load that it cost."""
        return max(self.options.hold_s, STINT_LOADS * asked.load_s)


def _at_once(board: Board, name: str) -> int:
    """Return how many places a policy may gain now: most of what its part of all queues says that it lacks."""
    places = sum(len(own) for own in board.serves.values())
    part = board.seen.policies[name].queue / max(sum(asked.queue for asked in board.seen.policies.values()), 1.0)
    return max(1, round((part * places - board.count(name)) * AT_ONCE))


def _may_gain(seen: Snapshot, name: str) -> bool:
    """Tell whether a policy's queue shows what moved last, and does not empty by itself."""
    asked = seen.policies[name]
    moved = max(asked.gained_at or 0.0, asked.gave_at or 0.0)
    return seen.now - moved >= SETTLE_S and asked.queue + asked.growth * EMPTIES_S > 0.0


def _per_engine(board: Board) -> dict[str, float]:
    """Return the smoothed queue per engine of each policy that has one."""
    counts = {name: board.count(name) for name in board.seen.policies}
    return {name: asked.queue / counts[name] for name, asked in board.seen.policies.items() if counts[name]}


def _said(seen: Snapshot, board: Board, name: str) -> str:
    return f"{name} has {turns_text(round(seen.policies[name].queue))} on {engines_text(board.count(name))}"
