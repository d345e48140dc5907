"""One check of a run's consistency: how far it is (in parts of 1000), and what it came to. The newest are kept.

Invariant: a run has one check at most that waits or is under way.
"""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.common.models import LeasedWork
from flexmarl.controlplane.runs.models.run import Run


class ConsistencyCheck(LeasedWork):
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checks")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    ok = models.BooleanField(null=True)
    result = models.JSONField(null=True)
    """`checks`, `counts` and `seq`, the last event of the view that was checked."""

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["run", "-id"], name="check_of_run"),
            models.Index(fields=["id"], name="check_open", condition=models.Q(state__in=["queued", "running"])),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["run"], name="check_one_open", condition=models.Q(state__in=["queued", "running"])
            )
        ]

    def __str__(self) -> str:
        return f"check of {self.run_id}"
