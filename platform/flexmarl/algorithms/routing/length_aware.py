"""Balance by tokens instead of requests: ten short replies are less work than one long one.

A reply that is expected to be much longer than usual goes where fewest others run: it decides when its batch ends, and
each neighbour slows it down.
"""

from collections.abc import Sequence

from flexmarl.algorithms.routing.base import Choice, EngineLoad, Reason, Router, RouteRequest, chosen, emptiest
from flexmarl.contracts.specification.routers import LengthAwareOptions

LONG = 2.0
"""Times the usual length: the long tail."""


class LengthAware(Router[LengthAwareOptions]):
    Options = LengthAwareOptions

    def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        """Pick the engine with the fewest tokens to make, for a long reply the one with the fewest requests."""
        least = emptiest(engines)
        if request.usual_tokens > 0 and request.reply_tokens >= LONG * request.usual_tokens:
            return chosen(least, Reason.LONG_TAIL, engines)
        best = min(engines, key=lambda load: (load.tokens, load.outstanding, load.engine))
        return chosen(best, Reason.FEWEST_TOKENS, engines)
