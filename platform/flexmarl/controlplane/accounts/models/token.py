"""Tokens for scripts: `fmx_<key>.<secret>`, of which only a keyed hash of the secret is stored.

What a token may do is what its owner may do now, within its scopes and projects; it works only from its networks.
"""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network

from django.db import models
from django.utils import timezone

from flexmarl.controlplane.accounts.models.user import User
from flexmarl.controlplane.common.actor import TokenLimits
from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.common.scopes import KEPT_IN_PROJECTS, OF_PROJECTS, Scope

Held = tuple[frozenset[Scope], dict[str, frozenset[Scope]]]


class ApiToken(Entity):
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=64)
    key = models.CharField(max_length=16, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    scopes = models.JSONField(default=list)
    projects = models.JSONField(default=list)
    """Names of the projects it is limited to; empty: all of its owner's."""
    networks = models.JSONField(default=list)
    """Address ranges it may be used from, e.g. `10.0.0.0/8`; empty: any address."""
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
        """The scopes the token was given."""
        return frozenset(Scope(scope) for scope in self.scopes)

    @property
    def limits(self) -> TokenLimits:
        """What the token takes from its owner besides scopes."""
        return TokenLimits(frozenset(self.projects), tuple(self.networks), self.expires_at)

    def narrow(self, everywhere: frozenset[Scope], projects: Mapping[str, frozenset[Scope]]) -> Held:
        """Cut an owner's scopes down to the token's. Limited to projects, it keeps little of the installation's."""
        granted = self.granted
        if not self.projects:
            return everywhere & granted, {name: held & granted for name, held in projects.items()}
        in_all = everywhere & OF_PROJECTS
        kept = {name: (in_all | projects.get(name, frozenset())) & granted for name in self.projects}
        return everywhere & granted & KEPT_IN_PROJECTS, {name: held for name, held in kept.items() if held}

    def allows_address(self, address: str) -> bool:
        """Say whether the token may be used from an address."""
        if not self.networks:
            return True
        try:
            at = ip_address(address)
        except ValueError:
            return False
        return any(at in ip_network(network) for network in self.networks)
