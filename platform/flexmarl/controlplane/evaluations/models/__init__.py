"""Suites and evaluations."""

from flexmarl.controlplane.evaluations.models.evaluation import Evaluation, EvaluationCell
from flexmarl.controlplane.evaluations.models.suite import Suite, SuiteVersion

__all__ = ["Evaluation", "EvaluationCell", "Suite", "SuiteVersion"]
