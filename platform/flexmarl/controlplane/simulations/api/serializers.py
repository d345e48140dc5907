"""Shapes of simulations and workloads."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.simulations.filters import KINDS, STATES
from flexmarl.controlplane.simulations.requests import MOST_CHANGES, MOST_SEEDS, MOST_STEPS


class SimulationProgressSerializer(serializers.Serializer[Any]):
    done = serializers.IntegerField(help_text="Simulations completed.")
    total = serializers.IntegerField()
    now = serializers.CharField(allow_blank=True, help_text="The simulation now running.")


class SimulationSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    kind = serializers.ChoiceField(KINDS)
    name = serializers.CharField()
    project = serializers.CharField()
    owner = serializers.CharField(allow_null=True)
    run = serializers.CharField(allow_null=True, help_text="Key of the run whose recording is replayed.")
    workload = serializers.CharField(allow_blank=True)
    presets = serializers.ListField(child=serializers.CharField())
    state = serializers.ChoiceField(STATES)
    reason = serializers.CharField(allow_blank=True, help_text="Why it failed: see docs/refusals.md.")
    reason_text = serializers.CharField(allow_blank=True)
    progress = SimulationProgressSerializer()
    allowed_actions = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    url = serializers.CharField()
    web_url = serializers.CharField()


class SimulationDetailSerializer(SimulationSerializer):
    request = serializers.JSONField(help_text="The request: presets, seeds, steps, changes, and excluded presets.")
    result = serializers.JSONField(help_text="Figures per preset and seed; null until it is done.")


class NewSimulationSerializer(StrictSerializer):
    name = serializers.CharField(required=False, default="", allow_blank=True, max_length=64)
    project = serializers.SlugField(
        required=False, default="", max_length=64, help_text=f"{DEFAULT_PROJECT} when absent; with run, the run's own."
    )
    workload = serializers.CharField(
        required=False, default="", max_length=64, help_text="Name of a workload; see /api/v1/workloads."
    )
    run = serializers.CharField(
        required=False, default="", max_length=64,
        help_text="Key or id of a run whose recorded load is played, instead of a workload.",
    )  # fmt: skip
    presets = serializers.ListField(
        child=serializers.CharField(max_length=64), required=False, default=list, max_length=100,
        help_text="Presets to compare; all applicable ones when absent.",
    )  # fmt: skip
    steps = serializers.IntegerField(
        required=False, default=8, min_value=1, max_value=MOST_STEPS, help_text="Train steps measured."
    )
    warm_up = serializers.IntegerField(
        required=False, default=1, min_value=0, max_value=MOST_STEPS, help_text="Warm-up train steps before these."
    )
    seeds = serializers.IntegerField(
        required=False, default=1, min_value=1, max_value=MOST_SEEDS,
        help_text="Repetitions with other replies and environments.",
    )  # fmt: skip
    changes = serializers.ListField(
        child=serializers.CharField(max_length=500), required=False, default=list, max_length=MOST_CHANGES,
        help_text="PATH=VALUE each, e.g. spec.batch.tasks_per_step=32 or machine.engine.batch=64.",
    )  # fmt: skip
    leave_out_refused = serializers.BooleanField(
        required=False, default=False, help_text="Skip presets that are refused, instead of refusing the request."
    )


class SimulatedIntervalSerializer(serializers.Serializer[Any]):
    device = serializers.IntegerField()
    kind = serializers.CharField()
    policy = serializers.CharField(allow_blank=True)
    t0 = serializers.FloatField()
    t1 = serializers.FloatField()
    busy = serializers.BooleanField(help_text="True for work; other kinds are overhead.")


class SimulatedDeviceSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    use = serializers.CharField()


class SimulatedTimelineSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    seconds = serializers.FloatField()
    left_out = serializers.IntegerField(help_text="Number of shortest intervals that are not listed.")
    devices = SimulatedDeviceSerializer(many=True)
    intervals = SimulatedIntervalSerializer(many=True)


class WorkloadSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]
    scenario = serializers.JSONField()
    url = serializers.CharField()
