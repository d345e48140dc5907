"""The experiment specification: what a researcher writes, validated before anything is queued."""

from flexmarl.contracts.specification.experiment import ExperimentSpec

__all__ = ["ExperimentSpec"]
