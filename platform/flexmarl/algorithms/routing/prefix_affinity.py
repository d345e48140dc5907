"""A turn goes to the engine that computed the beginning of its prompt before, unless that one is overloaded.

An episode's next turn of a role begins with its last one, and the members of a group begin alike. Memory is bounded:
what was asked for longest ago is forgotten first, which costs a prefill and nothing else.
"""

from collections import OrderedDict
from collections.abc import Sequence

from flexmarl.algorithms.routing.base import MARGIN, Choice, EngineLoad, Reason, Router, RouteRequest, chosen, emptiest
from flexmarl.contracts.specification.routers import PrefixAffinityOptions

REMEMBERED = 8192
"""Prefixes, about a megabyte."""


class PrefixAffinity(Router[PrefixAffinityOptions]):
    Options = PrefixAffinityOptions

    def __init__(self, options: PrefixAffinityOptions, margin: int = MARGIN, remembered: int = REMEMBERED) -> None:
        super().__init__(options)
        self._margin = margin
        self._remembered = remembered
        self._engine_of: OrderedDict[str, str] = OrderedDict()

    def choose(self, request: RouteRequest, engines: Sequence[EngineLoad]) -> Choice:
        """Pick the engine of the longest known prefix, or the least loaded one."""
        least = emptiest(engines)
        known = self._known(request.prefixes, engines)
        load, reason = least, Reason.LEAST_LOADED
        if known is not None:
            near = known.outstanding <= least.outstanding + self._margin
            load, reason = (known, Reason.PREFIX) if near else (least, Reason.OVERLOADED)
        self._remember(request.prefixes, load.engine)
        return chosen(load, reason, engines)

    def _known(self, prefixes: tuple[str, ...], engines: Sequence[EngineLoad]) -> EngineLoad | None:
        for prefix in prefixes:
            name = self._engine_of.get(prefix)
            if name is not None:
                for load in engines:
                    if load.engine == name:
                        return load
        return None

    def _remember(self, prefixes: tuple[str, ...], engine: str) -> None:
        for prefix in prefixes:
            self._engine_of[prefix] = engine
            self._engine_of.move_to_end(prefix)
        while len(self._engine_of) > self._remembered:
            self._engine_of.popitem(last=False)
