"""One simulation: what was asked for, how far it is, what it came to.

Invariants: `request` is never changed. While it is `running`, one process holds it until `lease_until` and raises that
time as it goes on; every write of that process names `takes`, so one that lost the row can write nothing any more.
"""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations.choices import Kind, SimulationState


class Simulation(Entity):
    kind = models.CharField(max_length=12, choices=[(str(kind), str(kind)) for kind in Kind])
    name = models.CharField(max_length=64)
    project = models.ForeignKey(
        Project,
        to_field="name",
        db_column="project",
        default=DEFAULT_PROJECT,
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
    state = models.CharField(
        max_length=10,
        default=SimulationState.QUEUED,
        choices=[(str(state), str(state)) for state in SimulationState],
    )
    reason = models.CharField(max_length=24, blank=True)
    reason_text = models.TextField(blank=True)
    done = models.PositiveIntegerField(default=0)
    """Single simulations that were played."""
    total = models.PositiveIntegerField(default=0)
    now_at = models.CharField(max_length=100, blank=True)
    """What is being played."""
    result = models.JSONField(null=True)
    timelines = models.JSONField(null=True)
    """Of each preset, what its devices did: wide, and read by one drawing alone."""
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    takes = models.PositiveSmallIntegerField(default=0)
    """How often a process took it; the fence of its writes."""
    lease_until = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["project", "-id"], name="simulation_project"),
            models.Index(fields=["id"], name="simulation_open", condition=models.Q(state__in=["queued", "running"])),
        ]

    def __str__(self) -> str:
        return self.name
