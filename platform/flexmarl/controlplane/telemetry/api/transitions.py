"""The four events of every policy over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter, within
from flexmarl.controlplane.common.api.pagination import CURSOR, Page, envelope
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.api.joint import STEP, cohort_of
from flexmarl.controlplane.telemetry.flow import transitions


class PolicyTransitionSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(list(transitions.KINDS))
    policy = serializers.CharField()
    at = serializers.DateTimeField()
    owner = serializers.CharField(help_text="`driver` of a cut; else the life of the trainer or engine that did it.")
    version = serializers.IntegerField(
        allow_null=True, help_text="Version the gradient is taken at, the step makes, or the engine serves."
    )
    cohort = serializers.IntegerField(allow_null=True, help_text="Null of a publication, which is of no cohort.")
    micro_batch = serializers.IntegerField(allow_null=True)
    rows = serializers.IntegerField(allow_null=True)
    event = serializers.IntegerField(allow_null=True, help_text="Its place in the run's event log; null of a cut.")


class TransitionsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("kind", "Kind of transition; may be repeated.", choices=transitions.KINDS, many=True),
        Parameter("policy", "Policy; may be repeated.", many=True),
        Parameter("cohort", "Cohort; publications are of none.", "integer"),
        STEP,
        Parameter("limit", f"Transitions per page, 1 to {transitions.MAX_LIMIT}.", "integer"),
        CURSOR,
    )

    @extend_schema(operation_id="runs_transitions", responses=listing(PolicyTransitionSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List when rows became ready, gradients were taken, the optimizer stepped and weights were served."""
        values = self.values
        limit = within("limit", values.get("limit", transitions.DEFAULT_LIMIT), transitions.MAX_LIMIT)
        wanted = queries.TransitionFilter(values.get("kind") or (), values.get("policy") or (), cohort_of(values))
        found = queries.transitions(find_run(actor_of(request), run_id), wanted, values.get("cursor"), limit)
        return Response(envelope(request, Page(found["results"], found["next"], None, None), found["results"]))
