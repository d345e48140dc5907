"""Simulations."""

from flexmarl.controlplane.simulations.models.simulation import Simulation

__all__ = ["Simulation"]
