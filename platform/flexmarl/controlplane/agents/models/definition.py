"""A role as a project knows it. It gets its hue on first use and keeps it on every page, in every run."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.agents.models.saved_version import SavedVersion
from flexmarl.controlplane.common.models import Entity

HUES = 8
"""Number of agent hues of the pages; a ninth role begins again at the first."""


class AgentDefinition(Entity):
    project = models.ForeignKey(
        Project,
        to_field="name",
        db_column="project",
        on_delete=models.PROTECT,
        related_name="agents",
    )
    role = models.CharField(max_length=32)
    hue = models.PositiveSmallIntegerField(validators=[MinValueValidator(1), MaxValueValidator(HUES)])
    description = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["project", "id"]
        constraints = [models.UniqueConstraint(fields=["project", "role"], name="agent_role_once_per_project")]

    def __str__(self) -> str:
        return f"{self.project_id}/{self.role}"


class AgentVersion(SavedVersion):
    """Settings of an agent, of `AgentSettings`."""

    agent = models.ForeignKey(AgentDefinition, on_delete=models.CASCADE, related_name="versions")

    class Meta:
        ordering = ["agent", "-number"]
        constraints = [models.UniqueConstraint(fields=["agent", "number"], name="agent_version_once")]

    def __str__(self) -> str:
        return f"{self.agent} version {self.number}"
