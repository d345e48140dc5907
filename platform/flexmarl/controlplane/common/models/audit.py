"""Who did what to what. Append-only; written by actions in the transaction of the change."""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.common.ids import uuid7


class AuditEntry(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)
    request_id = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=64)
    """Dotted, object first: `run.pause`."""
    target_kind = models.CharField(max_length=32)
    target_id = models.CharField(max_length=80)
    target_name = models.CharField(max_length=200, blank=True)
    detail = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [models.Index(fields=["target_kind", "target_id", "id"], name="audit_target")]

    def __str__(self) -> str:
        return f"{self.actor_name} {self.action} {self.target_name or self.target_id}"
