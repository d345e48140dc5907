"""Which engines give what they have left of a version to others, so that as many as can be are free. Pure.

Invariants: a move joins engines of one version only; an engine that takes something on stays within both limits, so
nothing waits there that did not wait before; one that has something waiting takes no part; whoever gives gives
everything, and takes nothing on.

Best fit is a heuristic: to empty the most engines is bin packing. The engines with the least left are emptied first,
each into the fullest one that can still take all of it, since what is roomy then stays so for the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

Vector = tuple[tuple[str, int], ...]
"""(policy, version), by policy."""


@dataclass(frozen=True, slots=True)
class Serving:
    """An engine that plays what it was given to the end."""

    engine: int
    version: Vector
    running: int
    """Replies that are being made."""
    waiting: int
    """Replies that have not begun."""
    tokens: int
    """Prompts and replies in its attention cache."""
    most_tokens: float = inf
    """That the cache holds."""


@dataclass(frozen=True, slots=True)
class Move:
    source: int
    destination: int


def repack(engines: Sequence[Serving], below: int) -> list[Move]:
    """Choose who is emptied into whom; `below`: replies from which an engine is full, see `Mover.below`."""
    able = [one for one in engines if not one.waiting and one.running < below and one.tokens < one.most_tokens]
    held = {one.engine: (one.tokens, one.running) for one in able}
    taking: set[int] = set()
    moves = []
    for source in sorted(able, key=lambda one: (one.tokens, one.running, one.engine)):
        if not source.running or source.engine in taking:
            continue  # it is free already, or it has what others gave
        fits = [one for one in able if one.engine in held and _fits(source, one, held[one.engine], below)]
        if not fits:
            continue
        fullest = max(fits, key=lambda one: (*held[one.engine], one.engine))
        tokens, running = held[fullest.engine]
        held[fullest.engine] = tokens + source.tokens, running + source.running
        del held[source.engine]
        taking.add(fullest.engine)
        moves.append(Move(source.engine, fullest.engine))
    return moves


def _fits(source: Serving, other: Serving, held: tuple[int, int], below: int) -> bool:
    """Tell whether an engine that has something can take on all that another has."""
    tokens, running = held
    if other.engine == source.engine or other.version != source.version or not running:
        return False
    return running + source.running <= below and tokens + source.tokens <= other.most_tokens
