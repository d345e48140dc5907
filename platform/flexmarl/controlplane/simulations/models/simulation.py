"""One simulation: what was asked for, how far it is, what it came to.

Invariant: `request` is never changed.
"""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import LeasedWork
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations.choices import SimulationKind


class Simulation(LeasedWork):
    kind = models.CharField(max_length=12, choices=[(str(kind), str(kind)) for kind in SimulationKind])
    name = models.CharField(max_length=64)
    project = models.ForeignKey(
        Project,
        to_field="name",
        db_column="project",
        on_delete=models.PROTECT,
        related_name="simulations",
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="simulations"
    )
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="simulations")
    """The run whose recorded load is played; null for built-in workloads."""
    workload = models.CharField(max_length=64, blank=True)
    """Name of a built-in workload; empty for what a run recorded."""
    request = models.JSONField()
    total = models.PositiveIntegerField(default=0)
    """Single simulations to play; `done` counts those that were."""
    result = models.JSONField(null=True)
    timelines = models.JSONField(null=True)
    """Of each preset, what its devices did: wide, and read by one drawing alone."""

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["project", "-id"], name="simulation_project"),
            models.Index(fields=["id"], name="simulation_open", condition=models.Q(state__in=["queued", "running"])),
        ]

    def __str__(self) -> str:
        return self.name
