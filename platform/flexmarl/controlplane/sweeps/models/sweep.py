"""A sweep and its trials: all that a search knows is in these rows.

Invariants: what was asked for never changes; trials are numbered from 1 without a gap; a trial and its run are written
in one transaction, so there is never one without the other but for runs that people deleted.
"""

from enum import StrEnum

from django.conf import settings
from django.db import models

from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.experiments.models import Experiment
from flexmarl.controlplane.runs.models import Run


class SweepState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


class TrialState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """Ended early, since it was weak or the sweep had used its budget."""
    FAILED = "failed"


class Sweep(Entity):
    project = models.ForeignKey(
        Project, to_field="name", db_column="project", on_delete=models.PROTECT, related_name="sweeps"
    )
    name = models.CharField(max_length=64)
    experiment = models.ForeignKey(Experiment, null=True, on_delete=models.SET_NULL, related_name="sweeps")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="sweeps")
    state = models.CharField(
        max_length=8, default=SweepState.RUNNING.value, choices=[(str(state), str(state)) for state in SweepState]
    )
    reason = models.CharField(max_length=24, blank=True)
    reason_text = models.TextField(blank=True)
    preset = models.CharField(max_length=64)
    template = models.CharField(max_length=64, blank=True)
    spec = models.JSONField()
    """Resolved specification that the trials vary."""
    plan = models.JSONField()
    """A `SearchPlan`."""

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["project", "-id"], name="sweep_project")]

    def __str__(self) -> str:
        return self.name


class SweepTrial(models.Model):
    sweep = models.ForeignKey(Sweep, on_delete=models.CASCADE, related_name="trials")
    number = models.PositiveIntegerField()
    values = models.JSONField()
    """Pointer as the plan names it -> value."""
    run = models.OneToOneField(Run, null=True, on_delete=models.SET_NULL, related_name="trial")
    state = models.CharField(
        max_length=8, default=TrialState.RUNNING.value, choices=[(str(state), str(state)) for state in TrialState]
    )
    objective = models.FloatField(null=True)
    """The metric as it was read last; null before there is one."""
    rungs = models.PositiveSmallIntegerField(default=0)
    """Rungs of successive halving that were judged."""
    why = models.TextField(blank=True)
    """Why it ended early or failed."""

    class Meta:
        ordering = ["sweep", "number"]
        constraints = [models.UniqueConstraint(fields=["sweep", "number"], name="sweep_trial_once")]

    def __str__(self) -> str:
        return f"{self.sweep} trial {self.number}"
