"""Who did what to what. Append-only; written by actions in the transaction of the change.

Holds no secrets: `common.actions.record`, the only writer, hides members that are named like one.
"""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.common.ids import uuid7


class AuditEntry(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)
    request_id = models.CharField(max_length=64, blank=True, db_index=True)
    action = models.CharField(max_length=64)
    """Dotted, object first: `run.pause`."""
    target_kind = models.CharField(max_length=32)
    target_id = models.CharField(max_length=80)
    target_name = models.CharField(max_length=200, blank=True)
    project = models.CharField(max_length=64, blank=True)
    """Name of the project the target belongs to; empty for what belongs to the installation. Outlives the project."""
    detail = models.JSONField(default=dict, blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    """What the action changed, as it was and as it is; null where there was or is nothing."""

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["target_kind", "target_id", "id"], name="audit_target"),
            models.Index(fields=["project", "id"], name="audit_project"),
        ]

    def __str__(self) -> str:
        return f"{self.actor_name} {self.action} {self.target_name or self.target_id}"
