"""Choice of the engine that answers a turn: pure functions used by rollout workers and simulator alike."""

from collections.abc import Callable

from flexmarl.algorithms.registry import Registry
from flexmarl.algorithms.routing.base import Choice, EngineLoad, Reason, Router, RouteRequest
from flexmarl.algorithms.routing.hardware_class import hardware_class
from flexmarl.algorithms.routing.least_loaded import least_loaded
from flexmarl.algorithms.routing.length_aware import length_aware
from flexmarl.algorithms.routing.lengths import ReplyLengths
from flexmarl.algorithms.routing.prefix_affinity import PrefixAffinity
from flexmarl.algorithms.routing.skew_aware import SkewAware
from flexmarl.algorithms.routing.version_aware import version_aware

MakeRouter = Callable[[], Router]
"""One router per run and process: what it remembers is its own."""

ROUTERS: Registry[MakeRouter] = Registry(
    "router",
    {
        "least_loaded": lambda: least_loaded,
        "prefix_affinity": PrefixAffinity,
        "length_aware": lambda: length_aware,
        "skew_aware": SkewAware,
        "hardware_class": lambda: hardware_class,
        "version_aware": lambda: version_aware,
    },
)

READS_LENGTHS = frozenset({"length_aware", "skew_aware", "hardware_class"})
"""Routers that go by how long replies are expected to be."""

__all__ = [
    "READS_LENGTHS",
    "ROUTERS",
    "Choice",
    "EngineLoad",
    "MakeRouter",
    "Reason",
    "ReplyLengths",
    "RouteRequest",
    "Router",
    "least_loaded",
]
