"""Comparison of up to twenty runs over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.telemetry.comparison import comparing


class MetricSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    unit = serializers.CharField(allow_blank=True)


class VariantRunSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    seed = serializers.IntegerField()
    step = serializers.IntegerField()


class VariantSerializer(serializers.Serializer[Any]):
    no = serializers.IntegerField()
    baseline = serializers.BooleanField()
    values = serializers.DictField(help_text="JSON pointer -> value, where variants differ; null: it has none.")
    runs = VariantRunSerializer(many=True)


class FoldedCurveSerializer(serializers.Serializer[Any]):
    x = serializers.ListField(child=serializers.FloatField(), help_text="Step.")
    mean = serializers.ListField(child=serializers.FloatField())
    low = serializers.ListField(child=serializers.FloatField(), help_text="Lowest run.")
    high = serializers.ListField(child=serializers.FloatField(), help_text="Highest run.")
    n = serializers.ListField(child=serializers.IntegerField(), help_text="Runs that got so far.")


class AgainstBaselineSerializer(serializers.Serializer[Any]):
    difference = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()
    df = serializers.FloatField(help_text="Degrees of freedom (Welch, Satterthwaite).")
    p = serializers.FloatField()
    p_corrected = serializers.FloatField(help_text="By Holm's method, for the number of variants tested.")
    n_base = serializers.IntegerField()
    significant = serializers.BooleanField()


class FinalFigureSerializer(serializers.Serializer[Any]):
    variant = serializers.IntegerField()
    values = serializers.ListField(child=serializers.FloatField(), help_text="One per run.")
    n = serializers.IntegerField()
    mean = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)
    against = AgainstBaselineSerializer(allow_null=True, help_text="Null: no baseline, or fewer than two runs a side.")


class FacetSerializer(serializers.Serializer[Any]):
    agent = serializers.CharField(allow_blank=True, help_text="Role or policy; empty: the team.")
    curves = FoldedCurveSerializer(many=True)
    figures = FinalFigureSerializer(many=True)


class RunComparisonSerializer(serializers.Serializer[Any]):
    metric = MetricSerializer()
    metrics = serializers.ListField(child=serializers.CharField(), help_text="Series that some run has.")
    pointers = serializers.ListField(child=serializers.CharField(), help_text="Where the variants differ.")
    variants = VariantSerializer(many=True)
    facets = FacetSerializer(many=True)
    level = serializers.FloatField(help_text="Confidence of the intervals.")
    test = serializers.CharField()


class RunComparisonView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("runs", f"Comma-separated ids or keys, at most {comparing.MOST_RUNS}."),
        Parameter("experiment", "Id of an experiment, in place of runs: its newest ones."),
        Parameter("metric", f"Name of a series; {comparing.USUAL} unless given."),
        Parameter("baseline", "Id or key of one of the runs; unless given, that of the experiment."),
    )

    @extend_schema(operation_id="runs_compare", responses=RunComparisonSerializer)
    def get(self, request: Request) -> Response:
        """Compare runs: what differs in them, their curves over seeds, final figures and tests against a baseline."""
        asked = {name: self.values.get(name, "") for name in ("experiment", "baseline")}
        named = [name for name in self.values.get("runs", "").split(",") if name]
        runs, baseline = comparing.chosen(actor_of(request), named, **asked)
        return Response(comparing.compare(runs, baseline, self.values.get("metric") or comparing.USUAL))
