"""A read-only view of the store's rows about deleted runs. No migration touches the table."""

from django.contrib.postgres.fields import ArrayField
from django.db import models


class RunDeletion(models.Model):
    """A run that is being deleted, or was. `ended_at` is set when nothing of it is left anywhere."""

    run_id = models.BigIntegerField(primary_key=True)
    operation = models.UUIDField()
    run = models.UUIDField()
    """Its id towards people."""
    key = models.TextField()
    project = models.TextField()
    asked_by = models.TextField()
    reason = models.TextField()
    request_id = models.TextField()
    asked_at = models.DateTimeField()
    rows_gone_at = models.DateTimeField(null=True)
    nodes = ArrayField(models.TextField())
    """Nodes that may still hold some of it."""
    ended_at = models.DateTimeField(null=True)

    class Meta:
        managed = False
        db_table = 'store"."run_deletion'

    def __str__(self) -> str:
        return f"deletion of {self.key}"
