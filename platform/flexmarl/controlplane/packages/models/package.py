"""A package at one version, as the store keeps it (`store.package`)."""

from django.db import models


class Package(models.Model):
    id = models.UUIDField(primary_key=True)
    project = models.TextField()
    name = models.TextField()
    release = models.TextField()
    source = models.JSONField()
    owner = models.TextField()
    owner_id = models.TextField()
    state = models.TextField()
    reason = models.TextField()
    reason_text = models.TextField()
    now_at = models.TextField()
    log = models.TextField()
    node = models.TextField()
    digest = models.TextField()
    lock = models.JSONField()
    manifest = models.JSONField()
    archived_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    version = models.IntegerField()

    class Meta:
        managed = False
        db_table = 'store"."package'
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name}@{self.release}"
