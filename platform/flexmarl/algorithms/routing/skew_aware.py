"""Long replies have engines of their own, whose batches stay small; the others share the rest.

A reply that ends last decides when a step ends, and each neighbour slows it down. How many engines the long ones get is
what lets both kinds end at the same time, under a declared slope of decoding over the batch. What was asked lately
stands for what will be: memory is a few numbers per set of engines. A wrong expectation costs time and nothing else.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from flexmarl.algorithms.routing.base import Choice, EngineLoad, Reason, RouteRequest, chosen

LONG = 1.5
"""Times the usual length from which a reply counts as long."""
DOUBLING = 48.0
"""Requests beyond the first at which a decoding step takes twice as long, about."""
WEIGHT = 1 / 64
"""Of the last request in what was asked lately."""
FADING = 1 - 1 / 4096
"""Of the most that was outstanding, per request."""
FLEETS = 64


@dataclass(slots=True)
class Kind:
    """Requests of one kind among those asked lately."""

    share: float = 0.0
    tokens: float = 0.0
    """Expected of one."""

    def note(self, tokens: float | None) -> None:
        """Take a request in: one of this kind with its expected tokens, or one of the other."""
        self.share += WEIGHT * ((tokens is not None) - self.share)
        if tokens is not None:
            self.tokens += WEIGHT * (tokens - self.tokens) if self.tokens else tokens


@dataclass(slots=True)
class Lately:
    """What was asked of one set of engines."""

    long: Kind = field(default_factory=Kind)
    others: Kind = field(default_factory=lambda: Kind(share=1.0))
    most: float = 0.0
    """Requests outstanding at once."""


def dedicated(engines: int, long: Kind, others: Kind, requests: float) -> int:
    """Return how many of the engines are for long replies, so that long ones and others end together; 0: none.

    On k engines, n requests of l tokens each take about l + n * l / k / DOUBLING decoding steps for one request.
    """
    if engines < 2 or not long.share or not others.share:
        return 0

    def steps(kind: Kind, count: int) -> float:
        return kind.tokens * (1.0 + requests * kind.share / count / DOUBLING)

    return min(range(1, engines), key=lambda k: (max(steps(long, k), steps(others, engines - k)), k))


class SkewAware:
    """Engines are told apart by name: all who route see the same ones as those for long replies."""

    def __init__(self) -> None:
        self._lately: OrderedDict[tuple[str, ...], Lately] = OrderedDict()

    def __call__(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        """Pick the engine with the fewest tokens to make among those of the reply's kind."""
        ranked = sorted(engines, key=lambda load: load.engine)
        lately = self._of(tuple(load.engine for load in ranked))
        is_long = request.usual_tokens > 0 and request.reply_tokens >= LONG * request.usual_tokens
        lately.long.note(request.reply_tokens if is_long else None)
        lately.others.note(None if is_long else request.reply_tokens)
        lately.most = max(lately.most * FADING, 1.0 + sum(load.outstanding for load in ranked))
        split = dedicated(len(ranked), lately.long, lately.others, lately.most)
        able = (ranked[:split] if is_long else ranked[split:]) or ranked
        best = min(able, key=lambda load: (load.tokens, load.outstanding, load.engine))
        return chosen(best, Reason.LONG_TAIL if is_long else Reason.FEWEST_TOKENS, engines)

    def _of(self, names: tuple[str, ...]) -> Lately:
        lately = self._lately.setdefault(names, Lately())
        self._lately.move_to_end(names)
        if len(self._lately) > FLEETS:
            self._lately.popitem(last=False)
        return lately
