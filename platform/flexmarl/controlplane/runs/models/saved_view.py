"""A list as somebody wants to see it again: the page and its query string, under a name."""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity


class SavedView(Entity):
    """Its owner's; everybody in the project sees it when it is shared."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views")
    project = models.ForeignKey(
        Project,
        to_field="name",
        db_column="project",
        on_delete=models.CASCADE,
        related_name="saved_views",
    )
    page = models.CharField(max_length=32)
    name = models.CharField(max_length=40)
    query = models.CharField(max_length=2000, blank=True)
    """Query string of the page, without `?`."""
    shared = models.BooleanField(default=False)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "project", "page", "name"], name="saved_view_name_once"),
        ]

    def __str__(self) -> str:
        return self.name
