"""Choice of the engine that answers a turn: pure, and used by rollout workers and simulator alike."""

from typing import Any

from flexmarl.algorithms.registry import Registry
from flexmarl.algorithms.routing.base import Choice, EngineLoad, Reason, Router, RouteRequest
from flexmarl.algorithms.routing.hardware_class import HardwareClass
from flexmarl.algorithms.routing.least_loaded import LeastLoaded
from flexmarl.algorithms.routing.length_aware import LengthAware
from flexmarl.algorithms.routing.lengths import ReplyLengths
from flexmarl.algorithms.routing.prefix_affinity import PrefixAffinity
from flexmarl.algorithms.routing.skew_aware import SkewAware
from flexmarl.algorithms.routing.version_aware import VersionAware
from flexmarl.contracts.specification.routers import ROUTER

ROUTERS: Registry[Router[Any]] = Registry(
    ROUTER, (LeastLoaded, PrefixAffinity, LengthAware, SkewAware, HardwareClass, VersionAware)
)

__all__ = ["ROUTERS", "Choice", "EngineLoad", "Reason", "ReplyLengths", "RouteRequest", "Router"]
