"""A named set of devices. A device names its pool; a pool nobody described still works."""

from django.db import models

from flexmarl.controlplane.common.models import Entity


class Pool(Entity):
    name = models.CharField(max_length=64, unique=True)
    description = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
