"""An evaluation: a version of a suite and the models that play it, a run for each model and part of the suite.

Invariants: every cell has its run from the transaction that made the evaluation, so there is nothing that a process
could forget or make twice. How far a cell is follows from its run; nothing is stored twice.
"""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.evaluations.models.suite import SuiteVersion
from flexmarl.controlplane.runs.models import Run


class ModelEvaluation(Entity):
    project = models.ForeignKey(
        Project, to_field="name", db_column="project", on_delete=models.PROTECT, related_name="evaluations"
    )
    name = models.CharField(max_length=64)
    suite_version = models.ForeignKey(SuiteVersion, on_delete=models.PROTECT, related_name="evaluations")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="evaluations"
    )
    note = models.CharField(max_length=300, blank=True)
    entries = models.JSONField()
    """List of `EvaluatedModel`, each with the label that tables use."""

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.project_id}/{self.name}"


class EvaluationCell(models.Model):
    """One model on one part of the suite."""

    evaluation = models.ForeignKey(ModelEvaluation, on_delete=models.CASCADE, related_name="cells")
    entry = models.PositiveSmallIntegerField()
    """Place of the model in the evaluation's list, from 0."""
    part = models.PositiveSmallIntegerField()
    """Place of the part in the suite's list, from 0."""
    run = models.OneToOneField(Run, null=True, on_delete=models.SET_NULL, related_name="evaluation_cell")
    """Null where somebody deleted the run."""

    class Meta:
        ordering = ["evaluation", "entry", "part"]
        constraints = [
            models.UniqueConstraint(fields=["evaluation", "entry", "part"], name="evaluation_cell_once"),
        ]

    def __str__(self) -> str:
        return f"{self.evaluation_id} {self.entry}/{self.part}"
