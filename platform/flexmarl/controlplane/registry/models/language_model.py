"""A revision of a model, as the store keeps it (`store.model`)."""

from django.db import models


class LanguageModel(models.Model):
    id = models.UUIDField(primary_key=True)
    project = models.TextField()
    name = models.TextField()
    revision = models.IntegerField()
    source = models.JSONField()
    owner = models.TextField()
    owner_id = models.TextField()
    state = models.TextField()
    reason = models.TextField()
    reason_text = models.TextField()
    now_at = models.TextField()
    node = models.TextField()
    digest = models.TextField()
    facts = models.JSONField()
    from_run = models.BigIntegerField(null=True)
    from_step = models.IntegerField(null=True)
    archived_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    version = models.IntegerField()

    class Meta:
        managed = False
        db_table = 'store"."model'
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} {self.revision}"
