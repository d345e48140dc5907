"""Versions of what a project defines: an agent, or a team.

Invariants: a version is never changed; numbers of an owner begin at 1 and have no gap. A run names a version by its
number.
"""

from django.db import models


class SavedVersion(models.Model):
    """Settings as they were saved once."""

    number = models.PositiveIntegerField()
    settings = models.JSONField()
    """What was set; the rest has its defaults."""
    note = models.CharField(max_length=300, blank=True)
    author = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True
