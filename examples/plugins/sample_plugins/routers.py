"""Engines answer in turn, some requests each."""

from collections.abc import Sequence

from flexmarl.algorithms.routing.base import Choice, EngineLoad, Reason, Router, RouteRequest, chosen, emptiest
from sample_plugins.options import RoundRobinOptions


class RoundRobin(Router[RoundRobinOptions]):
    def __init__(self, options: RoundRobinOptions) -> None:
        super().__init__(options)
        self._sent = 0

    def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        emptiest(engines)  # refuses an empty list
        ranked = sorted(engines, key=lambda load: load.engine)
        load = ranked[self._sent // self.options.requests % len(ranked)]
        self._sent += 1
        return chosen(load, Reason.OWN_RULE, engines)
