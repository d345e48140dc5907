"""Shapes of sweeps."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.experiments.api.serializers import DraftSerializer
from flexmarl.controlplane.sweeps.models import SweepState, TrialState

SWEEP_STATES = [state.value for state in SweepState]
TRIAL_STATES = [state.value for state in TrialState]


class SweepExperimentSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()


class TrialCountsSerializer(serializers.Serializer[Any]):
    made = serializers.IntegerField()
    ended = serializers.IntegerField()
    most = serializers.IntegerField()


class SweepSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField()
    experiment = SweepExperimentSerializer(allow_null=True)
    owner = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(SWEEP_STATES)
    reason = serializers.CharField(allow_blank=True)
    reason_text = serializers.CharField(allow_blank=True)
    method = serializers.CharField()
    metric = serializers.CharField()
    goal = serializers.CharField()
    trials = TrialCountsSerializer()
    allowed_actions = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class TrialRunSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    status = serializers.CharField()
    step = serializers.IntegerField()


class TrialSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    values = serializers.DictField(help_text="Pointer of the plan -> value.")
    state = serializers.ChoiceField(TRIAL_STATES)
    objective = serializers.FloatField(allow_null=True)
    why = serializers.CharField(allow_blank=True, help_text="Why it ended early or failed.")
    run = TrialRunSerializer(allow_null=True)


class SweepDetailSerializer(SweepSerializer):
    plan = serializers.JSONField()
    device_hours = serializers.FloatField(help_text="Used so far.")
    best = serializers.IntegerField(allow_null=True, help_text="Number of the best trial.")
    tried = TrialSerializer(many=True)


class NewSweepSerializer(DraftSerializer):
    name = serializers.CharField(max_length=64)
    project = serializers.SlugField(required=False, max_length=64, default=DEFAULT_PROJECT)
    experiment = serializers.CharField(
        required=False, allow_blank=True, max_length=64, default="", help_text="Name; created when it does not exist."
    )
    plan = serializers.DictField(help_text="Parameters, method, metric, goal and bounds: see docs/experiments.md.")
