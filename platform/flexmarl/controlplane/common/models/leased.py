"""A row of long work that one process does at a time and that outlives its process.

Invariants: while a row is `running`, one process has it until `lease_until` and raises that time as it goes on; every
write of that process names `takes`, so one that lost the row can write nothing any more.
"""

from enum import StrEnum

from django.db import models

from flexmarl.controlplane.common.models.base import Entity


class WorkState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (WorkState.QUEUED, WorkState.RUNNING)


class LeasedWork(Entity):
    state = models.CharField(
        max_length=10, default=WorkState.QUEUED.value, choices=[(str(state), str(state)) for state in WorkState]
    )
    reason = models.CharField(max_length=24, blank=True)
    """Why it failed, for programs."""
    reason_text = models.TextField(blank=True)
    done = models.PositiveIntegerField(default=0)
    """How far it is; the unit is that of the work."""
    now_at = models.CharField(max_length=100, blank=True)
    """What is being done."""
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    takes = models.PositiveSmallIntegerField(default=0)
    """How often a process took it; the fence of its writes."""
    lease_until = models.DateTimeField(null=True)

    class Meta:
        abstract = True
