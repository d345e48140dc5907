"""A read-only view of the store's rows about sessions of agent programs. No migration touches the table."""

from datetime import datetime

from django.db import models


class ProgramSessionRow(models.Model):
    id = models.UUIDField(primary_key=True)
    run_id = models.BigIntegerField()
    base_url = models.TextField()
    held_out = models.BooleanField()
    task = models.IntegerField()
    draw = models.IntegerField()
    member = models.IntegerField()
    attempt = models.IntegerField()
    state = models.TextField()
    report = models.JSONField()
    reason = models.TextField()
    opened_at = models.DateTimeField()
    taken_at = models.DateTimeField(null=True)
    reward_deadline_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    seen_at = models.DateTimeField()
    calls = models.IntegerField()
    tokens = models.IntegerField()
    left_s = models.FloatField(null=True)
    output = models.TextField()
    changes = models.JSONField(null=True)
    image = models.TextField()
    taken_by = models.TextField()
    reported_by = models.TextField()

    standing: str
    """Its state now, which is `ended` where its worker fell silent. Annotated, as what follows."""
    why: str
    over_at: datetime | None

    class Meta:
        managed = False
        db_table = 'store"."program_session'

    def __str__(self) -> str:
        return f"{self.id} {self.state}"
