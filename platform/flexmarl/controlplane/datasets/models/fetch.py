"""What somebody asked for of a dataset of a hub, as the store keeps it (`store.dataset_fetch`)."""

from django.db import models


class DatasetFetch(models.Model):
    id = models.UUIDField(primary_key=True)
    project = models.TextField()
    source = models.JSONField()
    owner = models.TextField()
    owner_id = models.TextField()
    state = models.TextField()
    reason = models.TextField()
    reason_text = models.TextField()
    now_at = models.TextField()
    done_bytes = models.BigIntegerField()
    bytes = models.BigIntegerField()
    node = models.TextField()
    found = models.JSONField()
    digest = models.TextField()
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    version = models.IntegerField()

    class Meta:
        managed = False
        db_table = 'store"."dataset_fetch'
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.source['repository']} at {self.source['revision']}"
