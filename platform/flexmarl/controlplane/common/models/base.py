"""The base of every managed object that people name."""

from django.db import models

from flexmarl.controlplane.common.ids import uuid7


class Entity(models.Model):
    """Has a time-ordered id, times, and a version that every change raises (for If-Match)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1, editable=False)

    class Meta:
        abstract = True
