"""What other settings would have done for a run, over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.simulations import what_if
from flexmarl.controlplane.simulations.api.serializers import SimulationDetailSerializer
from flexmarl.controlplane.simulations.api.views import accepted
from flexmarl.controlplane.simulations.requests import MOST_SEEDS, MOST_STEPS


class ProblemOfChangeSerializer(serializers.Serializer[Any]):
    pointer = serializers.CharField(help_text="JSON pointer into the specification.")
    code = serializers.CharField()
    detail = serializers.CharField()
    hint = serializers.CharField(allow_blank=True)


class AlternativeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    changes = serializers.JSONField(help_text="Dotted path of the specification -> value.")
    semantics = serializers.CharField(allow_blank=True, help_text="Effects other than time.")
    refused = ProblemOfChangeSerializer(many=True, help_text="Why it is not legal for this run; empty when it is.")


class AlternativesSerializer(serializers.Serializer[Any]):
    episodes = serializers.IntegerField(help_text="Finished training episodes whose rows are stored.")
    steps = serializers.IntegerField(help_text="Train steps that they were played for.")
    enough = serializers.BooleanField()
    alternatives = AlternativeSerializer(many=True)


class NewWhatIfSerializer(StrictSerializer):
    name = serializers.CharField(required=False, default="", allow_blank=True, max_length=64)
    steps = serializers.IntegerField(
        required=False, default=4, min_value=1, max_value=MOST_STEPS, help_text="Train steps replayed and measured."
    )
    seeds = serializers.IntegerField(
        required=False, default=3, min_value=1, max_value=MOST_SEEDS, help_text="Sample windows of the recording."
    )
    alternatives = serializers.ListField(
        child=serializers.CharField(max_length=64), required=False, min_length=1, max_length=100,
        help_text="Names of the changes, one at least; all that are legal when absent.",
    )  # fmt: skip


class WhatIfView(ApiView):
    scopes = {"GET": Scope.RUNS_READ, "POST": Scope.RUNS_WRITE}

    @extend_schema(operation_id="runs_what_if_read", responses=AlternativesSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read what may be asked: the changes of one setting, and how much the run has recorded."""
        return Response(what_if.offered(runs.find_run(actor_of(request), run_id)))

    @extend_schema(
        operation_id="runs_what_if", request=NewWhatIfSerializer, responses={202: SimulationDetailSerializer}
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Play what a run recorded again, as it was and with one setting changed. It is played in the background."""
        body = NewWhatIfSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given: dict[str, Any] = body.validated_data
        actor = actor_of(request)
        made = what_if.create_what_if(
            actor, runs.find_run(actor, run_id), steps=given["steps"], seeds=given["seeds"], name=given["name"].strip(),
            only=tuple(dict.fromkeys(given.get("alternatives", ()))),
        )  # fmt: skip
        return accepted(made)
