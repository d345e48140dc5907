"""A suite and its versions.

Invariant: a version is never changed, and what it names is pinned, so models played on it are comparable for good.
"""

from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity


class Suite(Entity):
    project = models.ForeignKey(
        Project, to_field="name", db_column="project", on_delete=models.PROTECT, related_name="suites"
    )
    name = models.CharField(max_length=32)
    description = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="suite_name_once_per_project")]

    def __str__(self) -> str:
        return f"{self.project_id}/{self.name}"


class SuiteVersion(models.Model):
    """Tasks, attempts, seed and sampling; numbers of a suite begin at 1 and have no gap."""

    suite = models.ForeignKey(Suite, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    content = models.JSONField()
    """A `SuiteContent`, complete."""
    note = models.CharField(max_length=300, blank=True)
    author = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["suite", "-number"]
        constraints = [models.UniqueConstraint(fields=["suite", "number"], name="suite_version_once")]

    def __str__(self) -> str:
        return f"{self.suite} version {self.number}"
