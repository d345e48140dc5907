"""Read-only views of the store's rows about runs. The tables belong to `flexmarl.store`: no migration touches them."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from flexmarl.controlplane.runs.models.run import Run


class RunStateRow(models.Model):
    run = models.OneToOneField(
        Run,
        to_field="no",
        primary_key=True,
        db_column="run_id",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="state",
    )
    status = models.TextField()
    reason = models.TextField()
    reason_text = models.TextField()
    status_since = models.DateTimeField()
    pending_verb = models.TextField()
    epoch = models.IntegerField()
    seq = models.BigIntegerField()
    step = models.IntegerField()
    progress = models.JSONField()
    reward_key = models.FloatField()
    """Team reward for ordering; minus infinity before the first step."""
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        managed = False
        db_table = 'store"."run_state'

    def __str__(self) -> str:
        return f"run {self.pk}: {self.status}"


class Handled(models.Model):
    """A producer key that the driver has moved to the log."""

    pk = models.CompositePrimaryKey("run_id", "producer_key")
    run_id = models.BigIntegerField()
    producer_key = models.TextField()
    seq = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = 'store"."handled'

    def __str__(self) -> str:
        return self.producer_key


class Checkpoint(models.Model):
    pk = models.CompositePrimaryKey("run_id", "step")
    run_id = models.BigIntegerField()
    label = models.TextField()
    step = models.IntegerField()
    versions = models.JSONField()
    path = models.TextField()
    bytes = models.BigIntegerField()
    facts = models.JSONField()
    at = models.DateTimeField()
    node = models.TextField()
    parts = models.JSONField()
    kept_by = ArrayField(models.TextField())
    solved = models.FloatField(null=True)
    team_score = models.FloatField(null=True)
    pinned_at = models.DateTimeField(null=True)
    pinned_by = models.TextField()
    state = models.TextField()
    state_text = models.TextField()

    class Meta:
        managed = False
        db_table = 'store"."checkpoint'

    def __str__(self) -> str:
        return f"{self.label} at step {self.step}"


class PolicyVersion(models.Model):
    pk = models.CompositePrimaryKey("run_id", "policy", "version")
    run_id = models.BigIntegerField()
    policy = models.TextField()
    version = models.IntegerField()
    parent = models.IntegerField(null=True)
    digest = models.TextField()
    state = models.TextField()
    facts = models.JSONField()
    at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = 'store"."policy_version'

    def __str__(self) -> str:
        return f"{self.policy} v{self.version}"


class LoggedEvent(models.Model):
    """An event of a run's log; `seq` is gapless."""

    pk = models.CompositePrimaryKey("run_id", "seq")
    run_id = models.BigIntegerField()
    seq = models.BigIntegerField()
    kind = models.TextField()
    body = models.JSONField()
    at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = 'store"."event'

    def __str__(self) -> str:
        return f"{self.seq} {self.kind}"


class Note(models.Model):
    """A line for people, written with the event that caused it."""

    pk = models.CompositePrimaryKey("run_id", "seq", "ord")
    run_id = models.BigIntegerField()
    seq = models.BigIntegerField()
    ord = models.IntegerField()
    level = models.TextField()
    actor = models.TextField()
    target = models.TextField()
    cause = models.TextField()
    text = models.TextField()
    at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = 'store"."note'

    def __str__(self) -> str:
        return self.text
