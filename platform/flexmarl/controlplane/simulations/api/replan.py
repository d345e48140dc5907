"""What a running run measures beside what its plan assumed, and what it is proposed, over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.runs.api.serializers import RunDetailSerializer
from flexmarl.controlplane.runs.api.views import detail
from flexmarl.controlplane.simulations import replan_actions
from flexmarl.controlplane.simulations.choices import ReplanReason, ReplanState


class ComparedRateSerializer(serializers.Serializer[Any]):
    name = serializers.ChoiceField(["step", "generation", "load", "training", "optimizer_step", "reply"])
    of = serializers.CharField(allow_blank=True, help_text="Policy or role; empty: of the run.")
    unit = serializers.CharField()
    assumed = serializers.FloatField(help_text="For the work that the run did.")
    measured = serializers.FloatField(help_text="Over the newest train steps.")
    ratio = serializers.FloatField(allow_null=True, help_text="Measured over assumed.")
    felt = serializers.FloatField(help_text="Share of a step that the difference is, at the most.")
    outside = serializers.BooleanField(help_text="Outside of the dead band, and felt.")


class SettingChangeSerializer(serializers.Serializer[Any]):
    pointer = serializers.CharField(help_text="JSON pointer into the specification.")
    before = serializers.JSONField(allow_null=True)
    value = serializers.JSONField(allow_null=True)


class ProposalSerializer(serializers.Serializer[Any]):
    setting = serializers.CharField()
    instead_of = serializers.CharField()
    changes = SettingChangeSerializer(many=True)
    patch = serializers.JSONField(help_text="The same as a partial specification.")
    now_step_s = serializers.FloatField(help_text="Measured.")
    then_step_s = serializers.FloatField(help_text="Predicted, likely.")
    then_step_s_most = serializers.FloatField(help_text="Predicted, at the most.")
    gain = serializers.FloatField(help_text="Share of a step that is saved, likely.")
    gain_least = serializers.FloatField()
    cost_s = serializers.FloatField(help_text="Seconds: the start, and the steps since the checkpoint once more.")
    saves_s = serializers.FloatField(help_text="Seconds that the rest of the run takes less, at the least.")
    steps_left = serializers.IntegerField()
    checkpoint = serializers.IntegerField(allow_null=True, help_text="The newest one when it was looked at.")
    because = serializers.JSONField(help_text="Rates that differed from what was assumed.")
    why = serializers.ListField(child=serializers.CharField(), help_text="What bounds a step on the proposed devices.")
    looked_at = serializers.IntegerField(help_text="Sets of devices, by the closed form.")
    simulated = serializers.IntegerField()
    stopped = serializers.BooleanField(help_text="There was no time to simulate all that were promising.")
    measured_steps = serializers.IntegerField()
    replay_step_s = serializers.FloatField(help_text="The run's own devices, as simulated: beside now_step_s.")
    refused = serializers.CharField(
        allow_blank=True, default="", help_text="Why it was not applied by itself, where resources.replan is apply."
    )
    at = serializers.DateTimeField()


class PastProposalSerializer(ProposalSerializer):
    became = serializers.ChoiceField(["withdrawn", "dismissed", "applied"])
    until = serializers.DateTimeField()


class ReplanSerializer(serializers.Serializer[Any]):
    state = serializers.ChoiceField([state.value for state in ReplanState])
    reason = serializers.ChoiceField([reason.value for reason in ReplanReason])
    reason_text = serializers.CharField()
    version = serializers.IntegerField()
    assumed_from = serializers.ChoiceField(["plan", "measured"], help_text="measured: by the run itself, before.")
    rates = ComparedRateSerializer(many=True)
    proposal = ProposalSerializer(allow_null=True)
    past = PastProposalSerializer(many=True)
    into = serializers.CharField(allow_null=True, help_text="Key of the run that goes on with what was applied.")
    looked_at = serializers.DateTimeField(allow_null=True)
    next_look_at = serializers.DateTimeField(allow_null=True)
    dead_band = serializers.FloatField(help_text="A rate within it is as assumed.")
    least_gain = serializers.FloatField(help_text="Share of a step that a proposal saves at the least.")
    allowed_actions = serializers.ListField(child=serializers.ChoiceField(["apply", "dismiss"]))


class ReplanView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}

    @extend_schema(operation_id="runs_replan_read", responses=ReplanSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read how a run's rates compare with what its plan assumed, and which devices it is proposed instead."""
        return _told(replan_actions.replan_row(runs.find_run(actor_of(request), run_id)))


class ReplanApplyView(ApiView):
    scopes = {"POST": Scope.RUNS_ACT}
    versioned = {"POST": False}

    @extend_schema(operation_id="runs_replan_apply", request=None, responses={201: RunDetailSerializer})
    def post(self, request: Request, run_id: str) -> Response:
        """Go on with the proposed devices: make and start a run from the newest checkpoint, and stop this one."""
        actor = actor_of(request)
        return detail(replan_actions.apply(actor, runs.find_run(actor, run_id), if_match(request)), status=201)


class ReplanDismissView(ApiView):
    scopes = {"POST": Scope.RUNS_ACT}
    versioned = {"POST": False}

    @extend_schema(operation_id="runs_replan_dismiss", request=None, responses=ReplanSerializer)
    def post(self, request: Request, run_id: str) -> Response:
        """Set the proposal aside; the same devices are not proposed again until steps take a quarter more or less."""
        actor = actor_of(request)
        return _told(replan_actions.dismiss(actor, runs.find_run(actor, run_id), if_match(request)))


def _told(row: dict[str, Any]) -> Response:
    return Response(row, headers={"ETag": etag(row["version"])})
