"""Tokens of nodes: `fmn_<key>.<secret>`, of which only a keyed hash of the secret is stored.

A token is one node's: it opens the operations of nodes for that name, with devices and episodes of one pool, and
nothing else. Several nodes with tokens may share a pool. A rotated token's former secret holds until `former_until`, so
that a host is changed without a pause. The token of a host that a provider was asked for is its job's: its text is made
of the job's id, and it holds no longer than the job.
"""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.common.models import Entity


class NodeToken(Entity):
    node = models.CharField(max_length=64)
    pool = models.CharField(max_length=64)
    job = models.UUIDField(null=True, blank=True, editable=False)
    """Of which job of a provider it is; None: somebody made it."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    key = models.CharField(max_length=16, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    former_hash = models.CharField(max_length=64, blank=True, editable=False)
    former_until = models.DateTimeField(null=True, blank=True, editable=False)
    rotated_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    """Written at most once a minute."""

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["node"], condition=models.Q(revoked_at=None), name="one_token_per_node"),
        ]

    def __str__(self) -> str:
        return f"fmn_{self.key}"
