"""Named sets of devices, and which of them a project's runs take when they name none.

A device names its pool; a pool nobody described still works. Bindings and quotas live in the store, where the
arbiter reads them.
"""

from django.core.validators import MinValueValidator
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity

INSTALLATION_POOL = "default"
"""Taken when nobody chose another one."""


class Pool(Entity):
    name = models.CharField(max_length=64, unique=True)
    description = models.CharField(max_length=300, blank=True)
    note = models.CharField(max_length=300, blank=True)
    """What people should know now, such as a maintenance to come."""
    device_hour_price = models.FloatField(null=True, validators=[MinValueValidator(0.0)])
    """What an hour of one of its devices costs, in the installation's own unit; null: nobody has said."""
    preemptible = models.BooleanField(default=False)
    """Its hosts may be taken away at any time, so plans train nothing there."""
    provider = models.JSONField(default=dict, blank=True)
    """Where its hosts come from (`contracts.providers`); empty: people start them."""
    is_default = models.BooleanField(default=False)
    """Runs of projects without a pool of their own take it."""

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                fields=["is_default"], condition=models.Q(is_default=True), name="one_default_pool"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ProjectPool(models.Model):
    """The pool that a project's runs take when they name none."""

    project = models.OneToOneField(Project, to_field="name", on_delete=models.CASCADE, related_name="own_pool")
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="default_of")

    class Meta:
        ordering = ["project"]

    def __str__(self) -> str:
        return f"{self.project_id}: {self.pool_id}"
