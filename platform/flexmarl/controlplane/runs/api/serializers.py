"""Shapes of runs, operations and checkpoints."""

from rest_framework import serializers

from flexmarl.contracts.events import Verb
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.experiments.api.serializers import DraftSerializer
from flexmarl.controlplane.runs.actions import MAX_NOTE
from flexmarl.controlplane.runs.choices import OperationState

STATUSES = [status.value for status in RunStatus]
REASONS = [reason.value for reason in RunReason if reason.value]
VERBS = [verb.value for verb in Verb]


class AgentProgressSerializer(serializers.Serializer):
    reward = serializers.FloatField(allow_null=True)
    version = serializers.IntegerField()


class MicroBatchProgressSerializer(serializers.Serializer):
    policy = serializers.CharField()
    cut = serializers.IntegerField()
    accumulated = serializers.IntegerField()
    expected = serializers.IntegerField()
    state = serializers.ChoiceField(["waiting", "accumulating", "stepping", "published"])


class ProgressSerializer(serializers.Serializer):
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
    tokens_generated = serializers.IntegerField()
    step_seconds = serializers.FloatField(allow_null=True)
    reward = serializers.FloatField(allow_null=True)
    reward_first = serializers.FloatField(allow_null=True)
    eval_solved = serializers.FloatField(allow_null=True)
    eval_best = serializers.FloatField(allow_null=True)
    eval_step = serializers.IntegerField(allow_null=True)
    agents = serializers.DictField(child=AgentProgressSerializer())
    micro_batches = MicroBatchProgressSerializer(many=True)
    waiting_for = serializers.CharField(allow_blank=True)


class RunAgentSerializer(serializers.Serializer):
    role = serializers.CharField()
    policy = serializers.CharField()
    trainable = serializers.BooleanField()
    hue = serializers.IntegerField(min_value=1, max_value=8)
    monogram = serializers.CharField()
    version = serializers.IntegerField()
    reward = serializers.FloatField(allow_null=True)


class RangeSerializer(serializers.Serializer):
    low = serializers.FloatField()
    high = serializers.FloatField()


class ExperimentRefSerializer(serializers.Serializer):
    id = serializers.UUIDField()
    name = serializers.CharField()


class RunSerializer(serializers.Serializer):
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


class RunDetailSerializer(RunSerializer):
    spec = serializers.JSONField()
    sources = serializers.DictField(child=serializers.CharField())
    arithmetic = serializers.JSONField()
    notes = serializers.CharField(allow_blank=True)
    seq = serializers.IntegerField(help_text="Newest event of the run's log.")


class NewRunSerializer(DraftSerializer):
    experiment = serializers.CharField(
        required=False, allow_blank=True, max_length=64, default="", help_text="Name; made when there is none."
    )
    notes = serializers.CharField(required=False, allow_blank=True, max_length=MAX_NOTE, default="")
    start = serializers.BooleanField(required=False, default=False, help_text="Start at once.")


class RunChangeSerializer(StrictSerializer):
    name = serializers.CharField(required=False, max_length=64)
    notes = serializers.CharField(required=False, allow_blank=True, max_length=MAX_NOTE)


class ActionSerializer(StrictSerializer):
    reason = serializers.CharField(required=False, allow_blank=True, max_length=300, default="")


class OperationTargetSerializer(serializers.Serializer):
    kind = serializers.ChoiceField(["run"])
    id = serializers.UUIDField()
    key = serializers.CharField()
    url = serializers.CharField()


class OperationResultSerializer(serializers.Serializer):
    status = serializers.ChoiceField(STATUSES)


class OperationErrorSerializer(OperationResultSerializer):
    reason = serializers.CharField(allow_blank=True)


class OperationSerializer(serializers.Serializer):
    id = serializers.UUIDField()
    action = serializers.ChoiceField(VERBS)
    state = serializers.ChoiceField([state.value for state in OperationState])
    target = OperationTargetSerializer()
    result = OperationResultSerializer(allow_null=True)
    error = OperationErrorSerializer(allow_null=True)
    created_by = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class CheckpointSerializer(serializers.Serializer):
    label = serializers.CharField()
    step = serializers.IntegerField()
    versions = serializers.DictField(child=serializers.IntegerField())
    path = serializers.CharField()
    size_bytes = serializers.IntegerField()
    facts = serializers.JSONField()
    created_at = serializers.DateTimeField()


class VersionSerializer(serializers.Serializer):
    policy = serializers.CharField()
    version = serializers.IntegerField()
    parent = serializers.IntegerField(allow_null=True)
    digest = serializers.CharField()
    facts = serializers.JSONField()
    created_at = serializers.DateTimeField()
