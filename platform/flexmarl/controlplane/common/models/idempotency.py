"""Answers kept for repeated POSTs."""

from django.db import models


class StoredAnswer(models.Model):
    """The answer of a POST, stored in the transaction of what it did: either both are there or neither is."""

    owner = models.CharField(max_length=80)
    """`user:<id>` or `token:<id>`."""
    method = models.CharField(max_length=8)
    path = models.CharField(max_length=300)
    key = models.CharField(max_length=200)
    body_hash = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField()
    body = models.JSONField()
    headers = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "method", "path", "key"], name="stored_answer_once"),
        ]

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.key}"
