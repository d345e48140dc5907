"""A row of a dataset, as the store keeps it (`store.dataset_row`)."""

from django.db import models


class StoredRow(models.Model):
    place = models.IntegerField(primary_key=True)
    digest = models.TextField()
    held_out = models.BooleanField()
    prompt = models.TextField()
    line = models.BinaryField()

    class Meta:
        managed = False
        db_table = 'store"."dataset_row'
        ordering = ["place"]

    def __str__(self) -> str:
        return f"row {self.place} of {self.digest[:12]}"
