"""Experiments."""

from flexmarl.controlplane.experiments.models.experiment import Experiment

__all__ = ["Experiment"]
