"""Sweeps and their trials."""

from flexmarl.controlplane.sweeps.models.sweep import Sweep, SweepState, SweepTrial, TrialState

__all__ = ["Sweep", "SweepState", "SweepTrial", "TrialState"]
