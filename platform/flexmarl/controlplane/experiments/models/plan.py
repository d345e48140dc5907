"""What ended runs told about speed, and plans that people may apply."""

from django.db import models

from flexmarl.controlplane.common.ids import uuid7


class MeasuredRun(models.Model):
    """How fast everything of an ended run was: read from its rows once, and kept when these are gone."""

    run_no = models.BigIntegerField(primary_key=True)
    pace = models.JSONField()
    """A `RunPace`; null members are what the run cannot tell."""
    read_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-run_no"]

    def __str__(self) -> str:
        return f"timings of run {self.run_no}"


class StoredPlan(models.Model):
    """A prediction as it was told to somebody, with what it rested on."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.CharField(max_length=64, blank=True)
    prediction = models.JSONField()
    """What the API answered."""
    figures = models.JSONField()
    """Figure -> low, likely, high: a plan holds while what is known now lies within."""
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "experiments_plan"
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"plan {self.id}"
