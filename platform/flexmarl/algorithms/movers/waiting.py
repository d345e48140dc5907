"""Places for policies that are asked and have no engine: given whatever the mover, for nobody may wait for ever.

Invariants:
- A policy that is asked and has no engine gets the next place that may be given; whoever waits longest comes first.
- The last engine of a policy is taken only while nobody asks that policy. A policy whose turns have all waited for
  `STUCK_S`, with all it is to hold loaded, counts as one that nobody asks: they wait for a version to come, which may
  need what others are asked.
"""

from collections.abc import Iterator

from flexmarl.algorithms.movers.base import Move, Snapshot
from flexmarl.algorithms.movers.board import Board, engines_text, turns_text

STUCK_S = 10.0
"""How long turns wait for a version to come before their policy's place may be given to who waits for any."""


def for_waiting(seen: Snapshot) -> list[Move]:
    """Give places to policies that are asked and have no engine, the longest waiting one first."""
    board = Board(seen)
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
            f"{name} has no engine and {turns_text(turns)} that {_waited(seen.now - since)}; "
            f"{out} has {turns_text(seen.policies[out].turns)} on {engines_text(board.count(out) + 1)}"
        )
        moves.append(Move(engine, out, name, "waiting", reason))
    return moves


def _waited(seconds: float) -> str:
    return f"waited {seconds:.1f} s" if seconds >= 0.05 else "arrived just now"


def _givers(board: Board, into: str) -> Iterator[tuple[int, str]]:
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
