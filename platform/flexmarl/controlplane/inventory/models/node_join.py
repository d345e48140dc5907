"""Requests of hosts to join: what a host told of itself, and the key of the token that it made.

Of that token a keyed hash is stored, as of any (`NodeToken`); an approval makes a row there with the same key and hash,
so that the text of the token is never sent back. Rows are removed some time after they were decided or ran out.
"""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.common.models import Entity


class NodeJoin(Entity):
    class State(models.TextChoices):
        WAITING = "waiting"
        APPROVED = "approved"
        REJECTED = "rejected"

    node = models.CharField(max_length=64)
    """Name that the host wishes; of an approved request the one that it was given."""
    pool = models.CharField(max_length=64)
    facts = models.JSONField()
    """`host_name`, `agent_version` and `devices` of `contracts.node_joining.NodeJoinRequest`."""
    address = models.CharField(max_length=64)
    """That it came from."""
    code = models.CharField(max_length=9)
    """Shown on the host as well, for people to compare."""
    key = models.CharField(max_length=16, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    state = models.CharField(max_length=8, choices=State, default=State.WAITING)
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.node} from {self.address}"
