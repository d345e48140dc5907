"""Evaluations: suites of held-out tasks, played by models without training."""

from django.apps import AppConfig


class EvaluationsConfig(AppConfig):
    name = "flexmarl.controlplane.evaluations"
    label = "evaluations"
    verbose_name = "Evaluations"
