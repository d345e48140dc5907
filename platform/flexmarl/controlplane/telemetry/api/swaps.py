"""Swaps of policies on trainer devices over REST."""

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
from flexmarl.controlplane.telemetry.timeline import swaps


class SwapSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField(help_text="Start time.")
    phase = serializers.ChoiceField(
        list(swaps.PHASES),
        help_text="`bind`: made, or restored from its committed version. `suspend`: taken off with all that it had "
        "gathered. `resume`: brought back with it. `sleep`: an engine let its weights and caches go for the trainer "
        "that shares its device. `wake`: it may load again.",
    )
    policy = serializers.CharField(help_text="Empty of an engine.")
    lease_id = serializers.IntegerField()
    device_id = serializers.CharField()
    seconds = serializers.FloatField()
    bytes = serializers.IntegerField(help_text="Length of what was moved or let go; 0 of a bind and a wake.")


class SwapsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("phase", "Phase; may be repeated.", choices=swaps.PHASES, many=True),
        Parameter("policy", "Policy; may be repeated.", many=True),
        Parameter("limit", f"Swaps per page, 1 to {swaps.MAX_LIMIT}.", "integer"),
        CURSOR,
    )

    @extend_schema(operation_id="runs_swaps", responses=listing(SwapSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List which policies came to trainer devices and left them, newest first, with bytes and seconds."""
        values = self.values
        limit = within("limit", values.get("limit", swaps.DEFAULT_LIMIT), swaps.MAX_LIMIT)
        found = queries.swaps(
            find_run(actor_of(request), run_id),
            values.get("phase") or (),
            values.get("policy") or (),
            values.get("cursor"),
            limit,
        )
        return Response(envelope(request, Page(found["results"], found["next"], None, None), found["results"]))
