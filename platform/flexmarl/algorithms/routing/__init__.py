"""Choice of the engine that answers a turn: pure functions used by rollout workers and simulator alike."""

from flexmarl.algorithms.registry import Registry
from flexmarl.algorithms.routing.least_loaded import EngineLoad, Router, least_loaded

ROUTERS: Registry[Router] = Registry("router", {"least_loaded": least_loaded})

__all__ = ["ROUTERS", "EngineLoad", "Router", "least_loaded"]
