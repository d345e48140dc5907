"""Some engines are for long replies alone, so that their batches stay small; the others are for all.

A reply that ends last decides when a step ends, and each neighbour slows it down. How many engines the long ones get is
what lets both kinds end at the same time, under a declared slope of decoding over the batch. What was asked lately
stands for what will be: memory is a few numbers per set of engines. A wrong expectation costs time and nothing else.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from flexmarl.algorithms.routing.base import Choice, EngineLoad, Reason, Router, RouteRequest, chosen, emptiest
from flexmarl.contracts.specification.routers import SkewAwareOptions

LONG = 1.5
"""Times the usual length from which a reply counts as long."""
DOUBLING = 48.0
"""Requests beyond the first at which a decoding step takes twice as long, about."""
WEIGHT = 1 / 64
"""Of the last request in what was asked lately."""
FADING = 1 - 1 / 4096
"""Of the most that was seen, per request."""
FLEETS = 64


@dataclass(slots=True)
class RequestKind:
    """Requests of one kind among those asked lately."""

    share: float = 0.0
    tokens: float = 0.0
    """Expected of one."""
    longest: float = 0.0
    """Expected of the longest one."""

    def note(self, tokens: float | None) -> None:
        """Take a request in: one of this kind with its expected tokens, or one of the other."""
        self.share += WEIGHT * ((tokens is not None) - self.share)
        self.longest *= FADING
        if tokens is not None:
            self.longest = max(self.longest, tokens)
            self.tokens += WEIGHT * (tokens - self.tokens) if self.tokens else tokens


@dataclass(slots=True)
class Lately:
    """What was asked of one set of engines.

    Not what ended: replies that end late are long, so the last ones that ended say little of the next ones.
    """

    usual: float = 0.0
    """Expected of an average request."""
    long: RequestKind = field(default_factory=RequestKind)
    others: RequestKind = field(default_factory=lambda: RequestKind(share=1.0))
    most: float = 0.0
    """Requests outstanding at once."""
    slots: int = 0
    """Most that an engine ran while others waited for it; 0: none was seen to be full."""

    def note(self, tokens: float, engines: Sequence[EngineLoad]) -> bool:
        """Take a request in, and tell whether it is a long one."""
        self.usual += WEIGHT * (tokens - self.usual) if self.usual else tokens
        is_long = tokens >= LONG * self.usual
        self.long.note(tokens if is_long else None)
        self.others.note(None if is_long else tokens)
        self.most = max(self.most * FADING, 1.0 + sum(load.outstanding for load in engines))
        self.slots = max(self.slots, *(load.running if load.waiting else 0 for load in engines))
        return is_long


def dedicated(engines: int, long: RequestKind, others: RequestKind, requests: float, slots: int = 0) -> int:
    """Return how many of the engines are for long replies, so that long ones and others end together; 0: none.

    n requests on k engines end when the longest does, which each token of its neighbours slows down: after about
    longest + n * tokens / k / DOUBLING decoding steps of a request alone; where not all have a slot, the tokens of
    those before have to be made as well.
    """
    if engines < 2 or not long.share or not others.share:
        return 0

    def steps(kind: RequestKind, count: int) -> float:
        each = requests * kind.share / count
        full = slots and each > slots
        return kind.longest + kind.tokens * each * (1.0 / DOUBLING + (1.0 / slots if full else 0.0))

    return min(range(1, engines), key=lambda k: (max(steps(long, k), steps(others, engines - k)), k))


class SkewAware(Router[SkewAwareOptions]):
    """Engines are told apart by name: all who route see the same ones as those for long replies."""

    Options = SkewAwareOptions

    def __init__(self, options: SkewAwareOptions) -> None:
        super().__init__(options)
        self._lately: OrderedDict[tuple[str, ...], Lately] = OrderedDict()

    def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        """Pick the engine with the fewest tokens to make; for a reply that is not long, of those for all.

        Raises ValueError without engines.
        """
        emptiest(engines)
        ranked = sorted(engines, key=lambda load: load.engine)
        lately = self._of(tuple(load.engine for load in ranked))
        is_long = lately.note(request.reply_tokens, ranked)
        split = dedicated(len(ranked), lately.long, lately.others, lately.most, lately.slots)
        able = ranked if is_long else ranked[split:]
        best = min(able, key=lambda load: (load.tokens, load.outstanding, load.engine))
        return chosen(best, Reason.LONG_TAIL if is_long else Reason.FEWEST_TOKENS, engines)

    def _of(self, names: tuple[str, ...]) -> Lately:
        lately = self._lately.setdefault(names, Lately())
        self._lately.move_to_end(names)
        if len(self._lately) > FLEETS:
            self._lately.popitem(last=False)
        return lately
