"""What people think of an episode: a word and a comment."""

from django.conf import settings
from django.db import models

from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.runs.models.run import Run

MAX_LABEL, MAX_COMMENT = 32, 2000


class TrajectoryLabel(Entity):
    """One person's word on one episode. The episode itself is a row of the store."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="labels")
    draw = models.IntegerField()
    member = models.IntegerField()
    attempt = models.IntegerField()
    label = models.CharField(max_length=MAX_LABEL)
    comment = models.CharField(max_length=MAX_COMMENT, blank=True)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    author_name = models.CharField(max_length=150)
    """Also when the author is a machine or gone."""

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["run", "label", "draw"], name="trajectory_label_word")]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "draw", "member", "attempt", "author_name"], name="trajectory_label_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.label}: {self.draw}-{self.member}-{self.attempt}"
