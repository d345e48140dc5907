"""A question that several runs try to answer. Runs name it; it holds no settings of its own."""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity


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
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="experiments"
    )

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="experiment_name_once_per_project")]

    def __str__(self) -> str:
        return self.name
