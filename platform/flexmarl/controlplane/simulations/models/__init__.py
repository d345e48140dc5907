"""Simulations, and what running runs are proposed by them."""

from flexmarl.controlplane.simulations.models.replan import RunReplan
from flexmarl.controlplane.simulations.models.simulation import Simulation

__all__ = ["RunReplan", "Simulation"]
