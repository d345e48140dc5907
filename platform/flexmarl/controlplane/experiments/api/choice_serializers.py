"""Shapes of devices chosen for a run: what is asked, and what is told."""

from typing import Any, get_args

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.experiments.plans import ChosenFrom
from flexmarl.simulator.choosing.objectives import LIMITS, MOST_LAG, Bottleneck, DeviceObjective, Objective

MOST_MONEY, MOST_SECONDS = 1e12, 3.2e8
LEAST = 1e-9


class ChooseSerializer(StrictSerializer):
    objective = serializers.ChoiceField(get_args(Objective), help_text="cheapest needs prices.")
    budget = serializers.FloatField(
        required=False, min_value=LEAST, max_value=MOST_MONEY, help_text="Cost of the whole run at most."
    )
    budget_per_hour = serializers.FloatField(required=False, min_value=LEAST, max_value=MOST_MONEY)
    budget_per_step = serializers.FloatField(required=False, min_value=LEAST, max_value=MOST_MONEY)
    deadline_s = serializers.FloatField(
        required=False,
        min_value=LEAST,
        max_value=MOST_SECONDS,
        help_text="Seconds of the whole run at most, from devices that are free at once.",
    )
    steps_per_hour = serializers.FloatField(required=False, min_value=LEAST, max_value=1e9, help_text="At least.")
    max_lag = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=MOST_LAG,
        help_text="Highest lag bound that may be chosen; absent: that of the specification stays.",
    )
    preemptible = serializers.ChoiceField(
        ["rollout", "never"], required=False, default="rollout", help_text="What preemptible pools may be used for."
    )
    pools = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        default=list,
        max_length=64,
        help_text="Choose among these; empty: all that the project may use.",
    )
    free = serializers.BooleanField(
        required=False, default=False, help_text="Only devices that nobody has now; false: all that work."
    )

    def chosen_from(self, body: dict[str, Any]) -> ChosenFrom:
        """Return what a valid body asks for."""
        given = {name: body[name] for name in (*LIMITS, "max_lag") if name in body}
        wish = DeviceObjective(objective=body["objective"], preemptible=body["preemptible"], **given)
        return ChosenFrom(wish, tuple(dict.fromkeys(body["pools"])), body["free"])


class ChoiceRangeSerializer(serializers.Serializer[Any]):
    low = serializers.FloatField()
    likely = serializers.FloatField()
    high = serializers.FloatField()


class ChoiceChangeSerializer(serializers.Serializer[Any]):
    pointer = serializers.CharField(help_text="Into the specification.")
    before = serializers.JSONField(allow_null=True)
    value = serializers.JSONField(allow_null=True)


class DevicePlanSerializer(serializers.Serializer[Any]):
    rollout_pool = serializers.CharField()
    rollout_devices = serializers.IntegerField()
    engine_devices = serializers.IntegerField(help_text="Devices of each engine: its tensor-parallel size.")
    training_pool = serializers.CharField()
    training_devices = serializers.IntegerField()
    shared = serializers.BooleanField(help_text="Trainers share the devices of engines, in turns.")
    lag_bound = serializers.IntegerField()
    step_s = ChoiceRangeSerializer()
    hours = ChoiceRangeSerializer(help_text="To the end of the budget, from devices that are free at once.")
    cost_per_hour = serializers.FloatField(allow_null=True, help_text="Null where a pool has no price.")
    cost_per_step = ChoiceRangeSerializer(allow_null=True)
    cost = ChoiceRangeSerializer(allow_null=True, help_text="Of the whole run.")
    engines_busy = serializers.FloatField()
    trainers_busy = serializers.FloatField()
    simulated = serializers.BooleanField(help_text="False: estimated by the closed form, corrected by simulated plans.")
    bottleneck = serializers.ChoiceField(get_args(Bottleneck))
    why = serializers.ListField(
        child=serializers.CharField(), help_text="What bounds a step, and what one more device of either side changes."
    )
    changes = ChoiceChangeSerializer(many=True)
    patch = serializers.JSONField(help_text="`changes` as a partial specification: send it as `overrides`.")


class ChoiceSerializer(serializers.Serializer[Any]):
    objective = serializers.ChoiceField(get_args(Objective))
    best = DevicePlanSerializer()
    others = DevicePlanSerializer(many=True, help_text="Runners-up.")
    asked = DevicePlanSerializer(allow_null=True, help_text="The devices of the specification as it is.")
    looked_at = serializers.IntegerField(help_text="Sets of devices.")
    simulated = serializers.IntegerField()
    stopped = serializers.BooleanField(help_text="There was no time to simulate all that were promising.")
    left_out = serializers.ListField(child=serializers.CharField(), help_text="Pools that were not looked at, and why.")
    unmeasured = serializers.ListField(child=serializers.CharField(), help_text="Kinds of devices of unknown speed.")
