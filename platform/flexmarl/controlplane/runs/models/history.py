"""Read-only views of the store's rows about what was asked and what became of it. No migration touches the tables."""

from django.db import models


class Attempt(models.Model):
    """A continuous stretch of a run. `no` is gapless."""

    pk = models.CompositePrimaryKey("run_id", "no")
    run_id = models.BigIntegerField()
    no = models.IntegerField()
    epoch = models.IntegerField()
    verb = models.TextField()
    began_by = models.TextField()
    began_at = models.DateTimeField()
    first_step = models.IntegerField()
    ended_at = models.DateTimeField(null=True)
    ended_by = models.TextField()
    status = models.TextField()
    reason = models.TextField()
    reason_text = models.TextField()
    last_step = models.IntegerField(null=True)
    versions = models.JSONField()

    class Meta:
        managed = False
        db_table = 'store"."attempt'

    def __str__(self) -> str:
        return f"attempt {self.no}"


class VerbOutcome(models.Model):
    """How a verb that somebody asked for ended."""

    pk = models.CompositePrimaryKey("run_id", "producer_key")
    run_id = models.BigIntegerField()
    producer_key = models.TextField()
    succeeded = models.BooleanField()
    status = models.TextField()
    text = models.TextField()
    at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = 'store"."verb_outcome'

    def __str__(self) -> str:
        return f"{self.producer_key}: {self.status}"
