"""How a run is and what could be changed, over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.advisor.rules import AdviceVerdict, Severity


class ChartSerializer(serializers.Serializer[Any]):
    tab = serializers.CharField()
    figure = serializers.CharField(allow_blank=True)
    web_url = serializers.CharField(required=False)


class VerdictSerializer(serializers.Serializer[Any]):
    verdict = serializers.ChoiceField([v.value for v in AdviceVerdict])
    word = serializers.CharField()
    tone = serializers.CharField()
    icon = serializers.CharField()
    text = serializers.CharField()
    basis = serializers.CharField(allow_blank=True)
    rule = serializers.CharField(allow_null=True)
    severity = serializers.CharField(allow_null=True)
    chart = ChartSerializer(allow_null=True)


class AdvisorySerializer(serializers.Serializer[Any]):
    rule = serializers.CharField()
    severity = serializers.ChoiceField([s.value for s in Severity])
    title = serializers.CharField()
    text = serializers.CharField()
    change = serializers.CharField(help_text="What to change.")
    chart = ChartSerializer()
    basis = serializers.CharField(allow_blank=True)
    agent = serializers.CharField(allow_blank=True)
    evidence = serializers.DictField(child=serializers.FloatField())


class AdvisoriesSerializer(serializers.Serializer[Any]):
    verdict = VerdictSerializer(allow_null=True)
    results = AdvisorySerializer(many=True)
    seq = serializers.IntegerField()


class AdvisoriesView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_advisories", responses=AdvisoriesSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read how a run is, with evidence and what to change. A run that does not work has no verdict."""
        return Response(queries.advisories(find_run(actor_of(request), run_id)))
