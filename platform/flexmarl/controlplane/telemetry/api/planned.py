"""What was predicted of a run, beside what it takes and costs, over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.experiments.api.serializers import PredictionSerializer, SpanSerializer
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries


class ActualUtilisationSerializer(serializers.Serializer[Any]):
    engine = serializers.FloatField(allow_null=True)
    trainer = serializers.FloatField(allow_null=True)


class ActualSerializer(serializers.Serializer[Any]):
    steps = serializers.IntegerField(help_text="Steps after the first one, which includes start-up.")
    window_s = serializers.FloatField()
    step_s = serializers.FloatField()
    utilisation = ActualUtilisationSerializer()
    hours = serializers.FloatField(help_text="Until the end of the budget at the current rate.")


class ComparedSerializer(SpanSerializer):
    name = serializers.CharField()
    actual = serializers.FloatField()
    within = serializers.BooleanField(help_text="Whether it lies in the predicted range.")
    ratio = serializers.FloatField(allow_null=True, help_text="Likely over actual.")


class RunPredictionSerializer(serializers.Serializer[Any]):
    predicted = PredictionSerializer()
    actual = ActualSerializer(allow_null=True, help_text="Null before the second step.")
    compared = ComparedSerializer(many=True)


class RunPredictionView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_prediction", responses=RunPredictionSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read what was predicted of a run, beside what it takes. 404 when no plan predicted it."""
        found = queries.planned(find_run(actor_of(request), run_id))
        if found is None:
            raise NotFound("No plan predicted this run. Plan with predict: true, and send the plan_token with the run.")
        return Response(found)


class CostSerializer(serializers.Serializer[Any]):
    device_hours = serializers.FloatField(help_text="Leased device hours; a shared device counts once.")
    unpriced_hours = serializers.FloatField(help_text="Of these, while the pool had no price.")
    cost = serializers.FloatField(
        allow_null=True, help_text="Each priced device hour at the price of its time; null without any."
    )


class PoolCostSerializer(CostSerializer):
    pool = serializers.CharField()


class CostPointSerializer(CostSerializer):
    at = serializers.DateTimeField(help_text="Figures are those until then.")


class RunCostSerializer(CostSerializer):
    pools = PoolCostSerializer(many=True)
    over_time = CostPointSerializer(many=True)


class RunCostView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_cost", responses=RunCostSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read what a run's devices have cost so far, by pool and over time."""
        return Response(queries.cost_of(find_run(actor_of(request), run_id)))
