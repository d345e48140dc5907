"""The four events of every policy over REST."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import transitions


class PolicyTransitionSerializer(serializers.Serializer):
    kind = serializers.ChoiceField(list(transitions.KINDS))
    policy = serializers.CharField()
    at = serializers.DateTimeField()
    owner = serializers.CharField(help_text="`driver` of a cut; else the life of the trainer or engine that did it.")
    version = serializers.IntegerField(
        allow_null=True, help_text="Version the gradient is taken at, the step makes, or the engine serves."
    )
    cohort = serializers.IntegerField(allow_null=True)
    micro_batch = serializers.IntegerField(allow_null=True)
    rows = serializers.IntegerField(allow_null=True)
    event = serializers.IntegerField(allow_null=True, help_text="Its place in the run's event log; null of a cut.")


class PolicyTransitionsSerializer(serializers.Serializer):
    results = PolicyTransitionSerializer(many=True)
    seq = serializers.IntegerField()


class TransitionsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("kind", "Kind of transition; may be repeated.", choices=transitions.KINDS, many=True),
        Parameter("policy", "Policy; may be repeated.", many=True),
        Parameter("limit", f"Newest transitions to list, 1 to {transitions.MAX_LIMIT}.", "integer"),
    )

    @extend_schema(operation_id="runs_transitions", responses=PolicyTransitionsSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """List when rows became ready, gradients were taken, the optimizer stepped and weights were served."""
        values = self.values
        limit = values.get("limit", transitions.DEFAULT_LIMIT)
        if not 1 <= limit <= transitions.MAX_LIMIT:
            detail = f"limit={limit} is not between 1 and {transitions.MAX_LIMIT}."
            hint = f"Set {transitions.MAX_LIMIT}."
            raise ValidationProblem(detail, errors=[FieldError("limit", "out_of_range", detail, hint, "query")])
        run = find_run(actor_of(request), run_id)
        return Response(transitions.transitions(run, values.get("kind") or (), values.get("policy") or (), limit))
