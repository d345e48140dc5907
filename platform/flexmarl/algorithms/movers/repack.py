"""Which engines give what they have left of a version to others, so that as many as can be are free. Pure.

Invariants: a move joins engines of one version only; an engine that takes something on stays within both limits, so
nothing waits there that did not wait before; one that has something waiting takes no part; whoever gives gives
everything, and takes nothing on.

Best fit is a heuristic: to empty the most engines is bin packing. The engines with the least left are emptied first,
each into the fullest one that can still take all of it, since what is roomy then stays so for the next.
"""

from collections.abc import Sequence
from math import inf

from flexmarl.algorithms.movers.base import Handover, Mover, Serving
from flexmarl.contracts.specification.movers import RepackMoverOptions


class RepackMover(Mover[RepackMoverOptions]):
    Options = RepackMoverOptions

    def handovers(self, engines: Sequence[Serving]) -> list[Handover]:
        """Gather what is left of a version on few engines."""
        most_tokens = inf if self.options.cache_tokens is None else self.options.cache_tokens
        return repack(engines, self.options.below, most_tokens)


def repack(engines: Sequence[Serving], below: int, most_tokens: float) -> list[Handover]:
    """Choose who is emptied into whom; an engine is full at `below` replies, or at `most_tokens` in its cache."""
    able = [one for one in engines if not one.waiting and one.running < below and one.tokens < most_tokens]
    held = {one.engine: (one.tokens, one.running) for one in able}
    taking: set[int] = set()
    moves = []
    for source in sorted(able, key=lambda one: (one.tokens, one.running, one.engine)):
        if not source.running or source.engine in taking:
            continue  # it is free already, or it has what others gave
        fits = [one for one in able if one.engine in held and _fits(source, one, held[one.engine], below, most_tokens)]
        if not fits:
            continue
        fullest = max(fits, key=lambda one: (*held[one.engine], one.engine))
        tokens, running = held[fullest.engine]
        held[fullest.engine] = tokens + source.tokens, running + source.running
        del held[source.engine]
        taking.add(fullest.engine)
        moves.append(Handover(source.engine, fullest.engine, f"which stays below {below}"))
    return moves


def _fits(source: Serving, other: Serving, held: tuple[int, int], below: int, most_tokens: float) -> bool:
    """Tell whether an engine that has something can take on all that another has."""
    tokens, running = held
    if other.engine == source.engine or other.version != source.version or not running:
        return False
    return running + source.running <= below and tokens + source.tokens <= most_tokens
