"""A run as people made it, and the operations they asked of it."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models.functions import Lower

from flexmarl.contracts.events import Verb
from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.models import Entity
from flexmarl.controlplane.experiments.models import Experiment, StoredPlan

NUMBER_SEQUENCE = "runs_run_no_seq"


class Run(Entity):
    """`no` is the run's number in the data plane; `id` and `key` are its names towards people."""

    no = models.BigIntegerField(
        unique=True,
        editable=False,
        db_default=models.Func(
            models.Value(NUMBER_SEQUENCE), function="nextval", output_field=models.BigIntegerField()
        ),
    )
    key = models.CharField(max_length=64, unique=True, editable=False)
    project = models.ForeignKey(
        Project,
        to_field="name",
        db_column="project",
        on_delete=models.PROTECT,
        related_name="runs",
    )
    name = models.CharField(max_length=64)
    experiment = models.ForeignKey(Experiment, null=True, on_delete=models.SET_NULL, related_name="runs")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="runs")
    preset = models.CharField(max_length=64)
    template = models.CharField(max_length=64, blank=True)
    environment = models.CharField(max_length=32)
    seed = models.BigIntegerField()
    spec = models.JSONField()
    """Resolved specification."""
    sources = models.JSONField(default=dict)
    """JSON pointer of each leaf -> default, template, preset or user."""
    note = models.TextField(blank=True)
    tags = ArrayField(models.CharField(max_length=32), default=list, blank=True)
    """Sorted, each once."""
    archived_at = models.DateTimeField(null=True, editable=False)
    """Since when lists leave it out; only ended runs and drafts are archived."""
    parent = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="copies")
    """The run this one was cloned from."""
    plan = models.ForeignKey(StoredPlan, null=True, editable=False, on_delete=models.SET_NULL, related_name="runs")
    """What was predicted of it, where it was made from a plan that did."""
    external_id = models.CharField(max_length=120, blank=True, editable=False)
    """What the scheduler that made the run calls it; at most one run of a project has it."""
    request_digest = models.CharField(max_length=64, blank=True, editable=False)
    """Of the body that made the run under its external id: the same one again is answered with it, another is not."""

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(Lower("name"), name="run_name_lower"),
            models.Index(fields=["owner", "id"], name="run_owner"),
            models.Index(fields=["project", "-id"], name="run_project"),
            models.Index(fields=["-updated_at", "-id"], name="run_updated"),
            GinIndex(fields=["tags"], name="run_tags"),
            GinIndex(fields=["spec"], opclasses=["jsonb_path_ops"], name="run_spec"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "external_id"], condition=~models.Q(external_id=""), name="external_id_once"
            )
        ]

    def __str__(self) -> str:
        return self.key


class Operation(models.Model):
    """A verb somebody asked for. How far it is follows from the run's log and status; nothing is stored twice."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    """Also the producer key of its event: `verb:<id>`."""
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="operations")
    verb = models.CharField(max_length=8, choices=[(str(verb), str(verb)) for verb in Verb])
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    reason = models.CharField(max_length=300, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.verb} {self.run_id}"

    @property
    def producer_key(self) -> str:
        """Key of the operation's event in the inbox and the log."""
        return f"verb:{self.id}"
