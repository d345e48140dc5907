"""Projects, and who is what in them. Everything that people make belongs to one project."""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.choices import ProjectRole
from flexmarl.controlplane.common.models import Entity

DEFAULT_PROJECT = "default"


class Project(Entity):
    """`name` is what runs, experiments and agents refer to; it never changes."""

    name = models.SlugField(max_length=64, unique=True)
    description = models.CharField(max_length=300, blank=True)
    weight = models.FloatField(default=1.0)
    """Its part of pools beside other projects whose runs wait with the same priority; drivers read the store's copy."""

    class Meta:
        ordering = ["name"]
        constraints = [models.CheckConstraint(condition=models.Q(weight__gt=0), name="project_weight_positive")]

    def __str__(self) -> str:
        return self.name


class Membership(Entity):
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=ProjectRole.choices, default=ProjectRole.VIEWER)

    class Meta:
        ordering = ["project", "user"]
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="member_once_per_project")]

    def __str__(self) -> str:
        return f"{self.user_id} as {self.role}"
