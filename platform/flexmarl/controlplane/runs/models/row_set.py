"""Rows that a run exported, imported under a name.

Invariant: they are never changed; the store keeps them by their digest, like those of datasets.
"""

from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity


class RowSet(Entity):
    project = models.ForeignKey(
        Project, to_field="name", db_column="project", on_delete=models.PROTECT, related_name="row_sets"
    )
    name = models.CharField(max_length=32)
    source = models.CharField(max_length=64)
    """Key of the run that exported them, in the installation that it ran in."""
    environment = models.JSONField()
    """Of that run's specification."""
    roles = models.JSONField()
    """Role -> policy, tokenizer, rows, solved, sampled."""
    rows = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    """Of the rows (`store.dataset`)."""
    author = models.CharField(max_length=150)
    archived_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="row_set_name_once_per_project")]

    def __str__(self) -> str:
        return f"{self.project_id}/{self.name}"
