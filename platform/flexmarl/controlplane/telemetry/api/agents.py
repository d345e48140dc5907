"""Agents of a run over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.api.serializers import VersionSerializer
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry.hardware import agents


def _figure(text: str) -> serializers.FloatField:
    return serializers.FloatField(allow_null=True, help_text=text)


class RunAgentFiguresSerializer(serializers.Serializer[Any]):
    role = serializers.CharField()
    policy = serializers.CharField()
    trainable = serializers.BooleanField()
    hue = serializers.IntegerField()
    monogram = serializers.CharField()
    model = serializers.JSONField(allow_null=True)
    tuning = serializers.JSONField(allow_null=True, help_text="What is trained: all weights, or an adapter.")
    parameters = _figure("Trained parameters, as reported by the trainer when it created the policy.")
    version = serializers.IntegerField(allow_null=True)
    version_at = serializers.DateTimeField(allow_null=True)
    digest = serializers.CharField(allow_null=True)
    reward = _figure("Last point of `reward/agent`.")
    tokens_per_s = _figure("Last point of `throughput/tokens`.")
    response_tokens = _figure("Last point of `length/response`.")
    entropy = _figure("Last point of `train/entropy`.")
    loss = _figure("Last point of `train/loss`.")
    kl_engine = _figure("Last point of `train/kl_engine`.")
    clipped = _figure("Last point of `train/clipped`.")
    staleness = _figure("Last point of `staleness/own_max`.")
    engines = serializers.ListField(
        child=serializers.CharField(), help_text="Devices that generated for it in the last 5 minutes."
    )
    trainers = serializers.ListField(
        child=serializers.CharField(), help_text="Devices that trained it in the last 5 minutes."
    )
    url = serializers.CharField()
    web_url = serializers.CharField()


class RunAgentDetailSerializer(RunAgentFiguresSerializer):
    versions = VersionSerializer(many=True, help_text=f"Newest {agents.VERSIONS} versions of its policy.")


class RunAgentsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_agents", responses=listing(RunAgentFiguresSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List the agents of a run with their last figures and their devices."""
        rows = agents.agents(find_run(actor_of(request), run_id))
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


class RunAgentView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_agent", responses=RunAgentDetailSerializer)
    def get(self, request: Request, run_id: str, role: str) -> Response:
        """Read one agent of a run with the newest versions of its policy."""
        return Response(agents.agent(find_run(actor_of(request), run_id), role))
