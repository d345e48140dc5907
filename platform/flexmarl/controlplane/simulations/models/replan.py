"""What is measured of a run that goes on beside what its plan assumed, and the setting that it is proposed.

Invariants: one row per run, made when it is first looked at; `version` counts changes of its state and of what is
proposed. Who looks writes only under the version that it read, so what somebody decided meanwhile stands.
"""

from django.db import models

from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.simulations.choices import ReplanReason, ReplanState


class RunReplan(models.Model):
    run = models.OneToOneField(Run, primary_key=True, on_delete=models.CASCADE, related_name="replan")
    version = models.PositiveIntegerField(default=1)
    state = models.CharField(
        max_length=12, default=ReplanState.WATCHING, choices=[(str(state), str(state)) for state in ReplanState]
    )
    reason = models.CharField(
        max_length=20, default=ReplanReason.TOO_FEW, choices=[(str(reason), str(reason)) for reason in ReplanReason]
    )
    reason_text = models.TextField(blank=True)
    assumed = models.JSONField(default=dict)
    """`figures`, by name; `step_s`, null where nobody predicted it; `source`: where they are from."""
    rates = models.JSONField(default=list)
    """Assumed and measured, as compared last."""
    proposal = models.JSONField(null=True)
    """The setting that is proposed now, or that was applied."""
    history = models.JSONField(default=dict)
    past = models.JSONField(default=list)
    """Former proposals with what became of them, the newest first."""
    into = models.ForeignKey(Run, null=True, on_delete=models.SET_NULL, related_name="+")
    """The run that goes on with the applied setting."""
    looked_at = models.DateTimeField(null=True)
    next_look_at = models.DateTimeField()

    class Meta:
        ordering = ["-run_id"]

    def __str__(self) -> str:
        return f"plan of {self.run_id} while it goes on"
