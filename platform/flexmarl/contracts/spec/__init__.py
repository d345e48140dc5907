"""The experiment specification: what a researcher writes, validated before anything is queued."""

from flexmarl.contracts.spec.experiment import ExperimentSpec

__all__ = ["ExperimentSpec"]
