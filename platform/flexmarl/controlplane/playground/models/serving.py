"""Serving keys: `fmk_<key>.<secret>`, of which only a keyed hash of the secret is stored, and their use by day.

A key belongs to a project, not to a person: it asks the project's agents until it is revoked, whoever made it leaves,
and opens nothing else.
"""

from collections.abc import Mapping

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.common.scopes import Scope

Held = tuple[frozenset[Scope], dict[str, frozenset[Scope]]]


class ServingKey(Entity):
    project = models.ForeignKey(
        Project, to_field="name", db_column="project", on_delete=models.CASCADE, related_name="serving_keys"
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    name = models.CharField(max_length=64)
    key = models.CharField(max_length=16, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    model_names = models.JSONField(default=list)
    """Names of the models that it may ask, with or without a version; empty: all of the project."""
    requests_per_minute = models.PositiveIntegerField()
    tokens_per_day = models.PositiveBigIntegerField()
    """Of prompts and replies together, in a day of UTC."""
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"fmk_{self.key}"

    @property
    def held(self) -> dict[str, frozenset[Scope]]:
        """What it may do, by project."""
        return {self.project_id: frozenset({Scope.MODELS_USE})}

    def narrow(self, everywhere: frozenset[Scope], projects: Mapping[str, frozenset[Scope]]) -> Held:
        """Return what it may do, whatever its bearer could do otherwise."""
        return frozenset(), self.held


class ServingDay(models.Model):
    """What was used with a key on one day. Its row is locked by whoever begins or ends a call."""

    key = models.ForeignKey(ServingKey, on_delete=models.CASCADE, related_name="days")
    day = models.DateField()
    requests = models.PositiveBigIntegerField(default=0)
    """Calls that were let in."""
    refused = models.PositiveBigIntegerField(default=0)
    """Calls that a quota kept out."""
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    minute = models.PositiveBigIntegerField(default=0)
    """The newest minute with a call, since the epoch."""
    minute_requests = models.PositiveIntegerField(default=0)
    used_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-day"]
        constraints = [models.UniqueConstraint(fields=["key", "day"], name="serving_day_once_per_key")]

    def __str__(self) -> str:
        return f"{self.key_id} on {self.day}"

    @property
    def tokens(self) -> int:
        """Tokens that were charged."""
        return self.prompt_tokens + self.completion_tokens


class ServingCall(models.Model):
    """A call under way, and what it may use at most; gone when it has been charged."""

    of = models.ForeignKey(ServingDay, on_delete=models.CASCADE, related_name="calls")
    reserved = models.PositiveBigIntegerField()
    opened_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.reserved} tokens since {self.opened_at}"
