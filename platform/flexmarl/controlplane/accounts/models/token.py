"""Tokens for scripts: `fmx_<key>.<secret>`, of which only a keyed hash of the secret is stored."""

from django.db import models
from django.utils import timezone

from flexmarl.controlplane.accounts.models.user import User
from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.common.scopes import Scope


class ApiToken(Entity):
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=64)
    key = models.CharField(max_length=16, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    scopes = models.JSONField(default=list)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    """Written at most once a minute."""

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"fmx_{self.key}"

    @property
    def usable(self) -> bool:
        """Say whether the token is neither revoked nor expired."""
        return self.revoked_at is None and self.expires_at > timezone.now()

    @property
    def granted(self) -> frozenset[Scope]:
        """The scopes the token was given. What it may do is what its owner may do now, within these."""
        return frozenset(Scope(scope) for scope in self.scopes)
