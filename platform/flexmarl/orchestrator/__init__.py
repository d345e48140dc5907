"""The joint orchestrator: facts in, decisions out. Pure code, driven by the driver and by the simulator alike."""

from flexmarl.orchestrator.orchestrator import Orchestrator
from flexmarl.orchestrator.types import Decision

__all__ = ["Decision", "Orchestrator"]
