"""Files of a model that somebody uploads, until they are imported or expire."""

from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity


class ModelUpload(Entity):
    """What was declared; how much has arrived is the size of its files below `HOME/uploads`."""

    project = models.ForeignKey(
        Project, to_field="name", db_column="project", on_delete=models.CASCADE, related_name="model_uploads"
    )
    owner = models.CharField(max_length=150)
    owner_id = models.CharField(max_length=64)
    files = models.JSONField()
    """[{name, bytes, sha256}], in the order of their names."""
    bytes = models.BigIntegerField()
    """Of all files together."""
    expires_at = models.DateTimeField()
    """Put off by every piece that arrives."""

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return str(self.id)
