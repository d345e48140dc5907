"""Shapes of runs, operations and versions."""

from typing import Any

from rest_framework import serializers

from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.status import SHOWN_STATUSES, RunReason
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.experiments.api.serializers import (
    DraftSerializer,
    SpanSerializer,
    SpecificationField,
    UtilisationSerializer,
)
from flexmarl.controlplane.runs import bulk, deletions
from flexmarl.controlplane.runs.actions import MAX_NOTE
from flexmarl.controlplane.runs.choices import OperationState
from flexmarl.controlplane.runs.lists import ORDERINGS
from flexmarl.controlplane.runs.marks import DEFAULT_PRIORITY, MOST_TAGS, Marks
from flexmarl.controlplane.runs.verbs import AS_SPECIFIED, VerbOptions

STATUSES = list(SHOWN_STATUSES)
REASONS = [reason.value for reason in RunReason if reason.value]
VERBS = [verb.value for verb in Verb]


class AgentProgressSerializer(serializers.Serializer[Any]):
    reward = serializers.FloatField(allow_null=True)
    version = serializers.IntegerField()


class MicroBatchProgressSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    cut = serializers.IntegerField()
    accumulated = serializers.IntegerField()
    expected = serializers.IntegerField()
    state = serializers.ChoiceField(["waiting", "accumulating", "stepping", "published"])


class TokenAccountSerializer(serializers.Serializer[Any]):
    sampled = serializers.IntegerField(help_text="In training episodes: delivered + undelivered + waiting.")
    delivered = serializers.IntegerField(help_text="In rows on which an optimizer step was taken.")
    undelivered = serializers.DictField(child=serializers.IntegerField(), help_text="By cause.")
    waiting = serializers.IntegerField(help_text="In settled rows whose step is not taken yet.")
    breaks = serializers.DictField(
        child=serializers.IntegerField(), help_text="Chains that ended before their episode did, by cause."
    )


class FleetSerializer(serializers.Serializer[Any]):
    engines = serializers.IntegerField(help_text="Engines that hold the weights and answer, or are waited for.")
    joining = serializers.IntegerField()
    leaving = serializers.IntegerField()
    min = serializers.IntegerField(help_text="Engines that the run cannot do without.")
    max = serializers.IntegerField(help_text="Engines that it takes while nobody waits for their devices.")
    wanted = serializers.IntegerField(help_text="Engines that it asks for now: `max`, or fewer by measured rates.")
    why = serializers.CharField(allow_blank=True, help_text="The rates by which `wanted` was decided last.")


class ArchivedRowsSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    age = serializers.IntegerField(help_text="In versions, of the group's oldest row.")
    origin = serializers.CharField(help_text="Who sampled them: `run`, the run itself.")
    groups = serializers.IntegerField()
    rows = serializers.IntegerField()


class ProgressSerializer(serializers.Serializer[Any]):
    """`contracts.live.Progress`, member by member (a test compares them)."""

    step = serializers.IntegerField()
    max_steps = serializers.IntegerField()
    cohort_groups_settled = serializers.IntegerField()
    cohort_groups = serializers.IntegerField()
    episodes_proposed = serializers.IntegerField()
    episodes_finished = serializers.IntegerField()
    episodes_failed = serializers.IntegerField()
    episodes_cancelled = serializers.IntegerField()
    samples_trained = serializers.IntegerField()
    rows_replayed = serializers.IntegerField(
        help_text="Rows on which a further step was taken; none of them is among `samples_trained` again."
    )
    archive = ArchivedRowsSerializer(many=True, help_text="What `sampling.replay` may draw from since the last step.")
    tokens_generated = serializers.IntegerField()
    tokens = TokenAccountSerializer()
    step_seconds = serializers.FloatField(allow_null=True)
    reward = serializers.FloatField(allow_null=True)
    reward_first = serializers.FloatField(allow_null=True)
    eval_solved = serializers.FloatField(allow_null=True)
    eval_best = serializers.FloatField(allow_null=True)
    eval_step = serializers.IntegerField(allow_null=True)
    agents = serializers.DictField(child=AgentProgressSerializer())
    micro_batches = MicroBatchProgressSerializer(many=True)
    fleet = FleetSerializer()
    waiting_for = serializers.CharField(allow_blank=True)
    attempt = serializers.IntegerField()
    frozen = serializers.BooleanField()
    release_at = serializers.FloatField(allow_null=True)


class RunAgentSerializer(serializers.Serializer[Any]):
    role = serializers.CharField()
    policy = serializers.CharField()
    trainable = serializers.BooleanField()
    hue = serializers.IntegerField(min_value=1, max_value=8)
    monogram = serializers.CharField()
    version = serializers.IntegerField()
    reward = serializers.FloatField(allow_null=True)


class RangeSerializer(serializers.Serializer[Any]):
    low = serializers.FloatField()
    high = serializers.FloatField()


class ExperimentRefSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()


class ParentSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()


class HeadlineSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="Series.")
    last = serializers.FloatField(allow_null=True)
    change = serializers.FloatField(allow_null=True, help_text="Since the first step.")


class RunSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    no = serializers.IntegerField(help_text="Number of the run in logs and in the store.")
    name = serializers.CharField()
    project = serializers.CharField()
    status = serializers.ChoiceField(STATUSES)
    reason = serializers.ChoiceField(REASONS, allow_blank=True)
    reason_text = serializers.CharField(allow_blank=True)
    status_since = serializers.DateTimeField()
    pending_verb = serializers.ChoiceField(VERBS, allow_blank=True)
    allowed_actions = serializers.ListField(child=serializers.ChoiceField(VERBS))
    preset = serializers.CharField()
    template = serializers.CharField(allow_blank=True)
    seed = serializers.IntegerField()
    owner = serializers.CharField(allow_null=True)
    experiment = ExperimentRefSerializer(allow_null=True)
    environment = serializers.CharField()
    tags = serializers.ListField(child=serializers.CharField())
    external_id = serializers.CharField(allow_blank=True)
    parent = ParentSerializer(allow_null=True)
    archived_at = serializers.DateTimeField(allow_null=True)
    headline = HeadlineSerializer()
    devices = serializers.IntegerField(help_text="Devices that the specification asks for.")
    attempt = serializers.IntegerField(help_text="Number of the current or last attempt; 0 for a draft.")
    step = serializers.IntegerField()
    max_steps = serializers.IntegerField()
    progress = ProgressSerializer()
    eta_s = RangeSerializer(allow_null=True)
    agents = RunAgentSerializer(many=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class AttemptSerializer(serializers.Serializer[Any]):
    no = serializers.IntegerField()
    epoch = serializers.IntegerField()
    verb = serializers.ChoiceField(VERBS, help_text="Why it started.")
    began_by = serializers.CharField(allow_blank=True)
    began_at = serializers.DateTimeField()
    first_step = serializers.IntegerField(help_text="Train steps done before it.")
    ended_at = serializers.DateTimeField(allow_null=True)
    ended_by = serializers.CharField(allow_blank=True)
    status = serializers.ChoiceField(STATUSES, help_text="Of the run when it ended; now, while it lasts.")
    reason = serializers.ChoiceField(REASONS, allow_blank=True)
    reason_text = serializers.CharField(allow_blank=True)
    last_step = serializers.IntegerField(help_text="Train steps done when it ended; now, while it lasts.")
    versions = serializers.DictField(child=serializers.IntegerField(), help_text="Of each policy when it ended.")


class PlannedSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    made_at = serializers.DateTimeField()
    step_s = SpanSerializer()
    tokens_s = SpanSerializer()
    utilisation = UtilisationSerializer()
    hours = SpanSerializer()
    device_hours = SpanSerializer()
    cost = SpanSerializer(allow_null=True)
    url = serializers.CharField(help_text="The full prediction, with the actual figures.")


class RunDetailSerializer(RunSerializer):
    spec = SpecificationField()
    sources = serializers.DictField(child=serializers.CharField())
    arithmetic = serializers.JSONField()
    attempts = AttemptSerializer(many=True)
    notes = serializers.CharField(allow_blank=True)
    plan = PlannedSerializer(allow_null=True, help_text="What was predicted of it; null when no plan did.")
    seq = serializers.IntegerField(help_text="Newest event of the run's log.")


class TagsField(serializers.ListField):
    child = serializers.CharField(max_length=32)


class MarkedDraftSerializer(DraftSerializer):
    """A draft with what is stuck to the run beside its specification."""

    experiment = serializers.CharField(
        required=False, allow_blank=True, max_length=64, default="", help_text="Name; created when it does not exist."
    )
    notes = serializers.CharField(required=False, allow_blank=True, max_length=MAX_NOTE, default="")
    tags = TagsField(required=False, default=list, max_length=MOST_TAGS)
    priority = serializers.IntegerField(required=False, min_value=0, max_value=100, default=DEFAULT_PRIORITY)
    start = serializers.BooleanField(required=False, default=False, help_text="Start at once.")
    plan_token = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=4000,
        default="",
        help_text="Token of a plan; refused when the plan is out of date.",
    )

    def marks(self, external_id: str = "", request_digest: str = "") -> Marks:
        """Return the marks of a valid body."""
        given: dict[str, Any] = self.validated_data
        return Marks(
            tags=tuple(given["tags"]),
            external_id=external_id or given.get("external_id", ""),
            priority=given["priority"],
            request_digest=request_digest,
        )

    def options(self) -> dict[str, Any]:
        """Return the other arguments of `create_run`."""
        given: dict[str, Any] = self.validated_data
        return {
            "experiment": given["experiment"],
            "note": given["notes"],
            "start": given["start"],
            "plan_token": given["plan_token"],
        }


class NewRunSerializer(MarkedDraftSerializer):
    project = serializers.SlugField(required=False, max_length=64, default=DEFAULT_PROJECT)


class CloneSerializer(MarkedDraftSerializer):
    """What the copy changes: `overrides`, or another `spec` or `yaml` laid over the original."""

    project = serializers.SlugField(
        required=False, allow_blank=True, max_length=64, default="", help_text="That of the original when absent."
    )


class RunChangeSerializer(StrictSerializer):
    name = serializers.CharField(required=False, max_length=64)
    notes = serializers.CharField(required=False, allow_blank=True, max_length=MAX_NOTE)
    tags = TagsField(required=False, max_length=MOST_TAGS)
    experiment = serializers.CharField(
        required=False, allow_blank=True, max_length=64, help_text="Name; created when it does not exist; empty: none."
    )


class SearchSerializer(StrictSerializer):
    filters = serializers.DictField(
        required=False, default=dict, help_text="Query parameters of the list by name, each a value or a list."
    )
    ordering = serializers.ChoiceField(list(ORDERINGS), required=False)
    limit = serializers.IntegerField(required=False, min_value=1, max_value=500)
    cursor = serializers.CharField(required=False, help_text="`next` or `previous` of another page.")
    count = serializers.ChoiceField(["exact", "false"], required=False)
    fields = serializers.ListField(  # type: ignore[assignment]
        child=serializers.ChoiceField(list(RunSerializer().fields)), required=False
    )


class BulkSerializer(StrictSerializer):
    action = serializers.ChoiceField(list(bulk.ACTIONS))
    ids = serializers.ListField(child=serializers.CharField(max_length=64), required=False, max_length=bulk.MOST)
    filter = serializers.DictField(required=False, help_text="Query parameters of the list by name.")
    expected_count = serializers.IntegerField(
        required=False, min_value=0, help_text="Runs that the filter matched when you looked; required with a filter."
    )
    tags = TagsField(required=False, default=list, max_length=MOST_TAGS, help_text="Of `tag` and `untag`.")
    experiment = serializers.CharField(
        required=False, allow_blank=True, max_length=64, default="", help_text="Name, of `move`; empty: none."
    )
    reason = serializers.CharField(required=False, allow_blank=True, max_length=300, default="")
    dry_run = serializers.BooleanField(
        required=False, default=False, help_text="Dry run: only report what would happen."
    )


class BulkErrorSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    detail = serializers.CharField()


class BulkItemSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    key = serializers.CharField(allow_null=True)
    outcome = serializers.ChoiceField(["done", "would", "refused"])
    operation = serializers.CharField(allow_null=True, help_text="Address of the operation of a verb.")
    error = BulkErrorSerializer(allow_null=True)


class BulkAnswerSerializer(serializers.Serializer[Any]):
    action = serializers.ChoiceField(list(bulk.ACTIONS))
    dry_run = serializers.BooleanField()
    count = serializers.IntegerField()
    done = serializers.IntegerField(help_text="Of a dry run: how many would be done.")
    refused = serializers.IntegerField()
    results = BulkItemSerializer(many=True)


class ActionSerializer(StrictSerializer):
    reason = serializers.CharField(required=False, allow_blank=True, max_length=300, default="")
    mode = serializers.ChoiceField(
        [mode.value for mode in PauseMode],
        required=False,
        help_text="Of pause: finish the open train step (drain, unless told otherwise), or stop at once (freeze).",
    )
    hold_s = serializers.FloatField(
        required=False,
        allow_null=True,
        help_text="Of pause: how long the run keeps its devices; null: until it is resumed. "
        "Unless told otherwise, resources.hold_s of the specification.",
    )

    def options(self) -> VerbOptions:
        """Return what came with the verb."""
        given = self.validated_data
        mode = PauseMode(given["mode"]) if "mode" in given else None
        return VerbOptions(mode=mode, hold_s=given.get("hold_s", AS_SPECIFIED))


class OperationTargetSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(["run"])
    id = serializers.UUIDField()
    key = serializers.CharField()
    url = serializers.CharField()


class OperationResultSerializer(serializers.Serializer[Any]):
    status = serializers.ChoiceField([*STATUSES, deletions.DONE])


class OperationErrorSerializer(serializers.Serializer[Any]):
    status = serializers.ChoiceField(STATUSES)
    reason = serializers.CharField(allow_blank=True)


class OperationSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    action = serializers.ChoiceField([*VERBS, deletions.ACTION])
    state = serializers.ChoiceField([state.value for state in OperationState])
    target = OperationTargetSerializer()
    result = OperationResultSerializer(allow_null=True)
    error = OperationErrorSerializer(allow_null=True)
    reason = serializers.CharField(allow_blank=True)
    request_id = serializers.CharField(allow_blank=True)
    created_by = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    url = serializers.CharField()
    web_url = serializers.CharField()


class VersionSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    version = serializers.IntegerField()
    parent = serializers.IntegerField(allow_null=True)  # type: ignore[assignment]
    digest = serializers.CharField()
    durable = serializers.BooleanField(help_text="Its training state is on disk: restored without redoing a step.")
    facts = serializers.JSONField()
    created_at = serializers.DateTimeField()
