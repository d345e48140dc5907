"""A team as a project knows it: its graph, its agents and their policies, in versions."""

from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.agents.models.saved_version import SavedVersion
from flexmarl.controlplane.common.models import Entity


class TeamDefinition(Entity):
    project = models.ForeignKey(
        Project,
        to_field="name",
        db_column="project",
        on_delete=models.PROTECT,
        related_name="teams",
    )
    name = models.CharField(max_length=32)
    description = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["project", "name"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="team_name_once_per_project")]

    def __str__(self) -> str:
        return f"{self.project_id}/{self.name}"


class TeamVersion(SavedVersion):
    """Settings of a team, of `TeamSettings`."""

    team = models.ForeignKey(TeamDefinition, on_delete=models.CASCADE, related_name="versions")

    class Meta:
        ordering = ["team", "-number"]
        constraints = [models.UniqueConstraint(fields=["team", "number"], name="team_version_once")]

    def __str__(self) -> str:
        return f"{self.team} version {self.number}"
