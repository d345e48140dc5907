"""Comparison of two runs' specifications over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.configuration import SOURCES, config_diff
from flexmarl.controlplane.runs.queries import find_run


class ComparedRunSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()


class ConfigRowSerializer(serializers.Serializer[Any]):
    pointer = serializers.CharField(help_text="JSON pointer into the specification.")
    value = serializers.JSONField(allow_null=True)
    present = serializers.BooleanField()
    source = serializers.ChoiceField(SOURCES, allow_null=True)  # type: ignore[assignment]
    other_value = serializers.JSONField(allow_null=True)
    other_present = serializers.BooleanField()
    other_source = serializers.ChoiceField(SOURCES, allow_null=True)
    equal = serializers.BooleanField()


class ConfigDiffSerializer(serializers.Serializer[Any]):
    run = ComparedRunSerializer()
    against = ComparedRunSerializer()
    different = serializers.IntegerField()
    equal = serializers.IntegerField(help_text="Values that are equal, whether listed or not.")
    results = ConfigRowSerializer(many=True)


class ConfigDiffView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("against", "Id or key of the other run.", required=True),
        Parameter("equal", "List equal values as well.", "boolean"),
    )

    @extend_schema(operation_id="runs_config_diff", responses=ConfigDiffSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Compare a run's specification with another run's, value by value."""
        actor = actor_of(request)
        run = find_run(actor, run_id)
        if not self.values.get("against"):
            detail = "against is missing."
            raise ValidationProblem(
                detail, errors=[FieldError("against", "required", detail, "Id or key of another run.", "query")]
            )
        found = config_diff(run, find_run(actor, self.values["against"]))
        if not self.values.get("equal", False):
            found["results"] = [row for row in found["results"] if not row["equal"]]
        return Response(found)
