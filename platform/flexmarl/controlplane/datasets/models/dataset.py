"""A dataset and its versions.

Invariant: a version is never changed; its rows are those of its digest, which the store keeps.
"""

from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.datasets.models.file import DatasetFile


class Dataset(Entity):
    project = models.ForeignKey(
        Project, to_field="name", db_column="project", on_delete=models.PROTECT, related_name="datasets"
    )
    name = models.CharField(max_length=32)
    description = models.CharField(max_length=300, blank=True)
    archived_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="dataset_name_once_per_project")]

    def __str__(self) -> str:
        return f"{self.project_id}/{self.name}"


class DatasetVersion(models.Model):
    """Rows of a file under a mapping and a split; numbers of a dataset begin at 1 and have no gap."""

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    file = models.ForeignKey(DatasetFile, on_delete=models.PROTECT, related_name="versions")
    mapping = models.JSONField()
    split = models.JSONField()
    digest = models.CharField(max_length=64)
    """Of the rows (`store.dataset`)."""
    training = models.PositiveIntegerField()
    held_out = models.PositiveIntegerField()
    columns = models.JSONField()
    """Names of the columns that are kept beside messages and answer."""
    note = models.CharField(max_length=300, blank=True)
    author = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["dataset", "-number"]
        constraints = [models.UniqueConstraint(fields=["dataset", "number"], name="dataset_version_once")]

    def __str__(self) -> str:
        return f"{self.dataset} version {self.number}"
