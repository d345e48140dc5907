"""Experiments, and what plans rest on."""

from flexmarl.controlplane.experiments.models.experiment import Experiment, ExperimentVerdict
from flexmarl.controlplane.experiments.models.plan import MeasuredRun, StoredPlan

__all__ = ["Experiment", "ExperimentVerdict", "MeasuredRun", "StoredPlan"]
