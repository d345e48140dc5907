"""Engines that serve the asked version as their newest come before those that only keep it for groups that pin it.

What keeps a former version has newer turns to serve, which only it and its like can.
"""

from collections.abc import Sequence

from flexmarl.algorithms.routing.base import Choice, EngineLoad, Reason, Router, RouteRequest, chosen, emptiest
from flexmarl.contracts.specification.routers import VersionAwareOptions


class VersionAware(Router[VersionAwareOptions]):
    Options = VersionAwareOptions

    def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        """Pick the least loaded engine whose newest version is the asked one, else of all."""
        newest = [load for load in engines if load.newest]
        return chosen(emptiest(newest or engines), Reason.NEWEST if newest else Reason.FORMER, engines)
