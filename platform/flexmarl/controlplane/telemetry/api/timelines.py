"""What devices did over time, of one run and of the cluster, over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.api.pace import WINDOW, BubbleSerializer, StepSpanSerializer, window_arguments


class DeviceTimelineSerializer(serializers.Serializer[Any]):
    device_id = serializers.CharField()
    node = serializers.CharField()
    kind = serializers.CharField()
    pool = serializers.CharField()
    use = serializers.ChoiceField(["engine", "trainer"])
    run_no = serializers.IntegerField()
    run_key = serializers.CharField(required=False, allow_blank=True)
    lease_id = serializers.IntegerField()
    lease_state = serializers.CharField()
    held_since = serializers.FloatField()
    held_until = serializers.FloatField(allow_null=True)
    intervals = serializers.ListField(child=serializers.ListField(), help_text="[start, end, phase, policy]")
    idle = serializers.ListField(child=serializers.ListField(), help_text="[start, end, cause]")
    busy_share = serializers.FloatField()
    bubble_share = serializers.FloatField()
    tokens = serializers.IntegerField()


class TimelineSerializer(serializers.Serializer[Any]):
    devices = DeviceTimelineSerializer(many=True)
    window = serializers.ListField(child=serializers.FloatField(), min_length=2, max_length=2)
    steps = StepSpanSerializer(many=True)
    bubble = BubbleSerializer()
    seq = serializers.IntegerField()


class IdleDeviceSerializer(serializers.Serializer[Any]):
    device_id = serializers.CharField()
    node = serializers.CharField()
    state = serializers.CharField()
    pool = serializers.CharField()


class ClusterTimelineSerializer(serializers.Serializer[Any]):
    devices = DeviceTimelineSerializer(many=True)
    idle_devices = IdleDeviceSerializer(many=True)
    window = serializers.ListField(child=serializers.FloatField(), min_length=2, max_length=2)
    runs = serializers.ListField(child=serializers.DictField())
    bubble = BubbleSerializer()
    pools = serializers.ListField(child=serializers.CharField())


class TimelineView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = WINDOW

    @extend_schema(operation_id="runs_timeline", responses=TimelineSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read what the run's devices did in a window, why they were idle, and the shares made of it."""
        run = find_run(actor_of(request), run_id)
        return Response(queries.timeline(run, **window_arguments(self.values)))


class ClusterTimelineView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ}
    parameters = (*WINDOW[:2], Parameter("pool", "Devices of this pool."), Parameter("node", "Devices of this node."))

    @extend_schema(operation_id="timeline", responses=ClusterTimelineSerializer)
    def get(self, request: Request) -> Response:
        """Read what all devices did in a window. Runs that the caller may not read have no name."""
        window = window_arguments(self.values)
        return Response(
            queries.cluster_timeline(
                actor_of(request),
                window["window_s"],
                until=window["until"],
                pool=self.values.get("pool", ""),
                node=self.values.get("node", ""),
            )
        )
