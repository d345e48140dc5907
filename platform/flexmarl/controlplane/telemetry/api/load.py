"""Load and engines of a run over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.contracts.engine_states import EngineDoubt, EngineState
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.filters import Parameter, within
from flexmarl.controlplane.common.api.pagination import CURSOR, Page, envelope
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.hardware import engines, load

STATES = tuple(state.value for state in EngineState)
POLICY = Parameter("policy", "Policy; may be repeated.", many=True)


class ServedSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    version = serializers.IntegerField()
    former_version = serializers.IntegerField(allow_null=True, help_text="The one before, which it still serves.")


class LoadingSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    version = serializers.IntegerField()


class EngineLoadSerializer(serializers.Serializer[Any]):
    age_s = serializers.FloatField(help_text="Age of the report; of an ended run, before its end.")
    running = serializers.IntegerField()
    waiting = serializers.IntegerField()
    slots = serializers.IntegerField(help_text="Requests of one policy version that it generates at once.")
    cache_use = serializers.FloatField(allow_null=True, help_text="Share of its attention cache; null: not reported.")
    hit_rate = serializers.FloatField(
        allow_null=True, help_text="Prompt tokens found in its prefix cache since it started; null: no prefix cache."
    )
    tokens_per_s = serializers.FloatField(allow_null=True, help_text="Generated, over the last seconds.")


class EngineSerializer(serializers.Serializer[Any]):
    lease_id = serializers.IntegerField()
    device_id = serializers.CharField(help_text="Its first device.")
    devices = serializers.ListField(child=serializers.CharField(), help_text="All of its devices, by rank.")
    node = serializers.CharField()
    kind = serializers.CharField(help_text="`cpu` or `cuda`.")
    state = serializers.ChoiceField(STATES)
    suspect = serializers.ChoiceField(
        [doubt.value for doubt in EngineDoubt],
        allow_blank=True,
        help_text="The component whose heartbeat is missing, or empty.",
    )
    incarnation = serializers.CharField(allow_blank=True, help_text="The current incarnation.")
    granted_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField(allow_blank=True, help_text="Reason its lease ended.")
    losses = serializers.IntegerField(help_text="Incarnations of it that were lost.")
    lost_at = serializers.DateTimeField(allow_null=True)
    lost_reason = serializers.CharField(allow_blank=True, help_text="Reason of the last loss.")
    serves = ServedSerializer(many=True)
    loading = LoadingSerializer(many=True)
    leaving = serializers.ListField(child=serializers.CharField(), help_text="Policies it is to forget.")
    load = EngineLoadSerializer(allow_null=True, help_text="Null: no report in the last minute.")


class EnginesView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("state", "State; may be repeated.", choices=STATES, many=True),
        Parameter("policy", "Serves or loads this policy; may be repeated.", many=True),
    )

    @extend_schema(operation_id="runs_engines", responses=listing(EngineSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List the run's engines, living ones first, with state, what each serves and what it told last."""
        values = self.values
        run = find_run(actor_of(request), run_id)
        rows = queries.engines(run, values.get("state") or (), values.get("policy") or ())
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


class EngineMoveSerializer(serializers.Serializer[Any]):
    seq = serializers.IntegerField(help_text="The event it was decided on.")
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(list(engines.MOVE_KINDS))
    cause = serializers.CharField(allow_blank=True, help_text="Of a move: `waiting` or `disparity`.")
    policy = serializers.CharField(help_text="That has the place now.")
    out = serializers.CharField(allow_blank=True, help_text="That had it; empty where it was free.")
    lease_id = serializers.IntegerField()
    device_id = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(help_text="With the queues it was decided by.")
    load_s = serializers.FloatField(allow_null=True, help_text="Duration of loading the weights; null until done.")
    until_served_s = serializers.FloatField(allow_null=True, help_text="From the decision until the engine served.")


class EngineMovesView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("kind", "Kind of move; may be repeated.", choices=engines.MOVE_KINDS, many=True),
        POLICY,
        Parameter("limit", f"Moves per page, 1 to {engines.MAX_LIMIT}.", "integer"),
        CURSOR,
    )

    @extend_schema(operation_id="runs_engine_moves", responses=listing(EngineMoveSerializer))
    def get(self, request: Request, run_id: str) -> Response:
        """List which places on engines were given or moved, newest first, with the reason and the measured cost."""
        values = self.values
        limit = within("limit", values.get("limit", engines.DEFAULT_LIMIT), engines.MAX_LIMIT)
        found = queries.engine_moves(
            find_run(actor_of(request), run_id),
            values.get("kind") or (),
            values.get("policy") or (),
            values.get("cursor"),
            limit,
        )
        return Response(envelope(request, Page(found["results"], found["next"], None, None), found["results"]))


class PolicyLoadSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    roles = serializers.ListField(child=serializers.CharField())
    waiting = serializers.IntegerField(help_text="Turns not sent to an engine yet.")
    in_flight = serializers.IntegerField(help_text="Turns at engines.")
    engines = serializers.IntegerField(help_text="That answer and hold a version of it.")
    slots = serializers.IntegerField(allow_null=True, help_text="Sum over these engines; null: not reported by all.")


class QueuePointSerializer(serializers.Serializer[Any]):
    at = serializers.FloatField()
    engines = serializers.IntegerField()
    running = serializers.FloatField()
    waiting = serializers.FloatField()
    longest = serializers.FloatField(help_text="Queue of the busiest engine.")
    skew = serializers.FloatField(allow_null=True, help_text="That over the mean queue; null without any request.")


class RequestedPointSerializer(serializers.Serializer[Any]):
    at = serializers.FloatField()
    policy = serializers.CharField()
    waiting = serializers.FloatField()
    in_flight = serializers.FloatField()


class OpenTurnSerializer(serializers.Serializer[Any]):
    role = serializers.CharField()
    policy = serializers.CharField()
    draw = serializers.IntegerField(help_text="Its episode group.")
    member = serializers.IntegerField()
    attempt = serializers.IntegerField()
    turn = serializers.IntegerField()
    since = serializers.DateTimeField()
    age_s = serializers.FloatField()
    episode_age_s = serializers.FloatField(allow_null=True)
    tokens = serializers.IntegerField(help_text="Generated so far, as last reported by its engine.")
    engine = serializers.CharField(allow_blank=True, help_text="Empty while it waits for one.")
    device_id = serializers.CharField(allow_blank=True)
    moves = serializers.IntegerField()


class ReplyMoveSerializer(serializers.Serializer[Any]):
    cause = serializers.CharField()
    engine = serializers.CharField(
        allow_blank=True, help_text="The incarnation that accepted them and did not finish them."
    )
    device_id = serializers.CharField(allow_blank=True)
    turns = serializers.IntegerField(help_text="Over the whole run.")
    at = serializers.DateTimeField()


class SeatTurnsSerializer(serializers.Serializer[Any]):
    role = serializers.CharField()
    open = serializers.IntegerField(help_text="Its turns without a reply; those of external models are not counted.")
    in_flight = serializers.IntegerField(help_text="Those of them that an engine has.")


class LoadSerializer(serializers.Serializer[Any]):
    window = serializers.ListField(child=serializers.FloatField(), min_length=2, max_length=2)
    part_s = serializers.FloatField(help_text="Interval averaged by a point of the series.")
    live = serializers.BooleanField()
    told = serializers.BooleanField(help_text="Whether a rollout worker reported its turns in the last seconds.")
    policies = PolicyLoadSerializer(many=True)
    engines = EngineSerializer(many=True)
    states = serializers.DictField(child=serializers.IntegerField(), help_text="Engines by state.")
    skew = serializers.FloatField(allow_null=True, help_text="Longest queue of an engine over the mean one, now.")
    queues = QueuePointSerializer(many=True)
    asked = RequestedPointSerializer(many=True)
    open = serializers.IntegerField(help_text="Turns without a reply.")
    seats = SeatTurnsSerializer(many=True)
    longest = OpenTurnSerializer(many=True)
    reply_moves = ReplyMoveSerializer(many=True)


class LoadView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter(
            "window_s",
            f"Seconds before now or the run's end, {load.MIN_WINDOW_S:g} to {load.MAX_WINDOW_S:g}; "
            f"{load.DEFAULT_WINDOW_S:g} when absent.",
            "number",
        ),
    )

    @extend_schema(operation_id="runs_load", responses=LoadSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read demand against capacity, the engines' queues over time, the longest open turns, replies that moved."""
        seconds = self.values.get("window_s", load.DEFAULT_WINDOW_S)
        if not load.MIN_WINDOW_S <= seconds <= load.MAX_WINDOW_S:
            text = f"window_s is not between {load.MIN_WINDOW_S:g} and {load.MAX_WINDOW_S:g}."
            hint = "Figures are kept for 30 minutes."
            raise ValidationProblem(text, errors=[FieldError("window_s", "out_of_range", text, hint, "query")])
        return Response(queries.load(find_run(actor_of(request), run_id), seconds))
