"""A file as it was uploaded or fetched, by the digest of its bytes. It stays while a version is made of it."""

from django.db import models

from flexmarl.controlplane.accounts.models import Project


class DatasetFile(models.Model):
    project = models.ForeignKey(
        Project, to_field="name", db_column="project", on_delete=models.PROTECT, related_name="dataset_files"
    )
    digest = models.CharField(max_length=64)
    """SHA-256."""
    name = models.CharField(max_length=200)
    format = models.CharField(max_length=16)
    bytes = models.BigIntegerField()
    origin = models.JSONField(null=True)
    """Repository, commit, configuration and files of a hub that it is an archive of; null: it was uploaded."""
    fetch = models.UUIDField(null=True)
    """What brought it and has its parts in the store; null: its parts are `FilePart`s."""
    author = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "digest", "format"], name="dataset_file_once_per_project")
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.digest[:12]}"


class FilePart(models.Model):
    file = models.ForeignKey(DatasetFile, on_delete=models.CASCADE, related_name="parts")
    place = models.PositiveIntegerField()
    body = models.BinaryField()

    class Meta:
        ordering = ["file", "place"]
        constraints = [models.UniqueConstraint(fields=["file", "place"], name="dataset_file_part_once")]

    def __str__(self) -> str:
        return f"{self.file} part {self.place}"
