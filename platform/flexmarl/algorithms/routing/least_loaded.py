"""Least outstanding work: what the engine said at its last answer plus what was sent to it since."""

from collections.abc import Sequence

from flexmarl.algorithms.routing.base import Choice, EngineLoad, Reason, Router, RouteRequest, chosen, emptiest
from flexmarl.contracts.specification.routers import LeastLoadedOptions


class LeastLoaded(Router[LeastLoadedOptions]):
    Options = LeastLoadedOptions

    def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        """Pick the engine with the least outstanding work; equal ones by name. Raises ValueError without engines."""
        return chosen(emptiest(engines), Reason.LEAST_LOADED, engines)
