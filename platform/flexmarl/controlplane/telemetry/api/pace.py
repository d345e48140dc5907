"""Where held device time goes and what passes through the pipeline, over REST."""

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
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.timeline.windows import MAX_WINDOW_S, MIN_WINDOW_S

WINDOW = (
    Parameter("window_s", "Seconds before `until`; 300 when absent.", "number"),
    Parameter("until", "End of the window, seconds since the epoch; now, or the run's end, when absent.", "number"),
    Parameter("step", "A finished train step as the window, instead of `window_s`.", "integer"),
)


MAX_MOMENT = 253_402_300_000.0
"""End of the year 9999."""


def window_arguments(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a window. Refuses a length out of range and a step with a length."""
    seconds = values.get("window_s")
    if values.get("until") is not None and not 0 <= values["until"] <= MAX_MOMENT:
        raise _refused("until", "out_of_range", "is not a time: send seconds since the epoch.")
    if seconds is not None and not MIN_WINDOW_S <= seconds <= MAX_WINDOW_S:
        raise _refused("window_s", "out_of_range", f"is not between {MIN_WINDOW_S:g} and {MAX_WINDOW_S:g}.")
    if values.get("step") is not None and (seconds is not None or values.get("until") is not None):
        raise _refused("step", "conflict", "already sets a window: omit window_s and until.")
    return {"window_s": seconds, "step": values.get("step"), "until": values.get("until")}


def _refused(name: str, code: str, text: str) -> ValidationProblem:
    return ValidationProblem(f"{name} {text}", errors=[FieldError(name, code, f"{name} {text}", "", "query")])


class CauseSerializer(serializers.Serializer[Any]):
    cause = serializers.CharField()
    title = serializers.CharField()
    text = serializers.CharField()
    seconds = serializers.FloatField()
    share = serializers.FloatField(help_text="Of held time.")


class DeviceBubbleSerializer(serializers.Serializer[Any]):
    device_id = serializers.CharField()
    node = serializers.CharField()
    use = serializers.ChoiceField(["engine", "trainer"])
    lease_id = serializers.IntegerField()
    held_s = serializers.FloatField()
    busy_s = serializers.FloatField()
    bubble_share = serializers.FloatField()
    causes = CauseSerializer(many=True)


class AgentRateSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField(allow_blank=True)
    rollout_s = serializers.FloatField()
    train_s = serializers.FloatField()
    other_s = serializers.FloatField()
    tokens = serializers.IntegerField()
    tokens_per_s = serializers.FloatField(help_text="Generated, per second in which an engine was held.")


class BubbleSerializer(serializers.Serializer[Any]):
    window = serializers.ListField(child=serializers.FloatField(), min_length=2, max_length=2)
    window_s = serializers.FloatField()
    step = serializers.IntegerField(allow_null=True)
    basis = serializers.CharField()
    held_s = serializers.FloatField()
    busy_s = serializers.FloatField()
    bubble_s = serializers.FloatField()
    busy_share = serializers.FloatField(allow_null=True)
    bubble_share = serializers.FloatField(allow_null=True)
    causes = CauseSerializer(many=True)
    devices = DeviceBubbleSerializer(many=True)
    agents = AgentRateSerializer(many=True, required=False)
    seq = serializers.IntegerField(required=False)


class BubbleView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = WINDOW

    @extend_schema(operation_id="runs_bubble", responses=BubbleSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read where the held device time of a window went: busy, or idle by cause. Shares add up to 1."""
        run = find_run(actor_of(request), run_id)
        return Response(queries.bubble(run, **window_arguments(self.values)))


class BubbleSpanSerializer(serializers.Serializer[Any]):
    t0 = serializers.FloatField()
    t1 = serializers.FloatField(allow_null=True)


class BlockSerializer(serializers.Serializer[Any]):
    micro_batch = serializers.IntegerField()
    number = serializers.IntegerField(help_text="Place in its step, from 1.")
    cohort = serializers.IntegerField()
    status = serializers.CharField()
    rows = serializers.IntegerField()
    groups = serializers.IntegerField()
    started = serializers.FloatField()
    ready = serializers.FloatField()
    claimed = serializers.FloatField(allow_null=True)
    done = serializers.FloatField(allow_null=True)


class OptimizerStepSerializer(BubbleSpanSerializer):
    version = serializers.IntegerField()


class PublicationSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    at = serializers.FloatField()


class WaitSerializer(BubbleSpanSerializer):
    cause = serializers.CharField()
    title = serializers.CharField()
    seconds = serializers.FloatField()


class LaneSerializer(serializers.Serializer[Any]):
    policy = serializers.CharField()
    blocks = BlockSerializer(many=True)
    optimizer_steps = OptimizerStepSerializer(many=True)
    publications = PublicationSerializer(many=True)
    stepped_held = serializers.IntegerField(allow_null=True)
    waits = WaitSerializer(many=True)
    expected = serializers.IntegerField()
    open_since = serializers.ListField(child=serializers.FloatField())


class StepSpanSerializer(BubbleSpanSerializer):
    step = serializers.IntegerField()


class PipelineSerializer(serializers.Serializer[Any]):
    window = serializers.ListField(child=serializers.FloatField(), min_length=2, max_length=2)
    window_s = serializers.FloatField()
    step = serializers.IntegerField(allow_null=True)
    live = serializers.BooleanField()
    current_step = serializers.IntegerField(allow_null=True)
    step_seconds = serializers.FloatField(allow_null=True)
    policies = LaneSerializer(many=True)
    steps = StepSpanSerializer(many=True)
    passed = serializers.DictField()
    flow = serializers.ListField(child=serializers.DictField())
    trainer_time = serializers.ListField(child=serializers.DictField())
    trainer_step = serializers.IntegerField(allow_null=True)
    staleness = serializers.ListField(child=serializers.DictField())
    lag_bound = serializers.IntegerField()
    strip = serializers.ListField(child=serializers.DictField())
    limits = serializers.DictField()
    bubble_share = serializers.FloatField(allow_null=True)
    seq = serializers.IntegerField()


class PipelineView(ApiView):
    scopes = {"GET": Scope.RUNS_READ}
    parameters = WINDOW

    @extend_schema(operation_id="runs_pipeline", responses=PipelineSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read what passed through the pipeline in a window, micro-batch by micro-batch, and what limited it."""
        run = find_run(actor_of(request), run_id)
        return Response(queries.pipeline(run, **window_arguments(self.values)))
