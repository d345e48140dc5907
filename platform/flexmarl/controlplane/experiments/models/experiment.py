"""A question that several runs try to answer, and what came of it. Runs name it; it holds no settings of its own.

Invariant: the baseline is a run of the experiment, or nothing.
"""

from enum import StrEnum

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity


class ExperimentVerdict(StrEnum):
    OPEN = "open"
    SUPPORTED = "supported"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"


class Experiment(Entity):
    project = models.ForeignKey(
        Project,
        to_field="name",
        db_column="project",
        on_delete=models.PROTECT,
        related_name="experiments",
    )
    name = models.CharField(max_length=64)
    description = models.TextField(blank=True)
    question = models.CharField(max_length=300, blank=True)
    notes = models.TextField(blank=True)
    """Markdown."""
    baseline = models.ForeignKey("runs.Run", null=True, on_delete=models.SET_NULL, related_name="+")
    """The run that the others are compared with, together with those that differ from it only by their seed."""
    verdict = models.CharField(
        max_length=12, default=ExperimentVerdict.OPEN.value, choices=[(str(one), str(one)) for one in ExperimentVerdict]
    )
    verdict_text = models.TextField(blank=True)
    """Why, in Markdown."""
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="experiments"
    )

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="experiment_name_once_per_project")]

    def __str__(self) -> str:
        return self.name
