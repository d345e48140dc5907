"""Suites and evaluations."""

from flexmarl.controlplane.evaluations.models.evaluation import EvaluationCell, ModelEvaluation
from flexmarl.controlplane.evaluations.models.suite import Suite, SuiteVersion

__all__ = ["EvaluationCell", "ModelEvaluation", "Suite", "SuiteVersion"]
