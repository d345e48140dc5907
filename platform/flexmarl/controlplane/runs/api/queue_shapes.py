"""Shapes of the queue and of drains."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.inventory.actions import MAX_NOTE
from flexmarl.controlplane.inventory.api.serializers import DrainStateSerializer
from flexmarl.controlplane.runs.queue_actions import HIGHEST, LOWEST
from flexmarl.orchestrator.pool.arbiter import Unmet
from flexmarl.store.control.cordons import DrainMode

MODES = [mode.value for mode in DrainMode]


class QueuedRunSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class PoolRequestSerializer(serializers.Serializer[Any]):
    pool = serializers.CharField()
    devices = serializers.IntegerField()
    position = serializers.IntegerField(help_text="Position in the queue of this pool; 1 is next.")


class QueueEntrySerializer(serializers.Serializer[Any]):
    position = serializers.IntegerField()
    run_no = serializers.IntegerField(allow_null=True)
    run = QueuedRunSerializer(allow_null=True, help_text="Null for runs of projects that you may not read.")
    run_text = serializers.CharField()
    project = serializers.CharField(allow_null=True)
    priority = serializers.IntegerField()
    pools = PoolRequestSerializer(many=True)
    purpose = serializers.ChoiceField(["start", "replacement"])
    code = serializers.ChoiceField([unmet.value for unmet in Unmet])
    pool = serializers.CharField()
    wanted = serializers.IntegerField()
    there = serializers.IntegerField()
    limit = serializers.IntegerField()
    behind = serializers.CharField(allow_null=True, help_text="Key of the run ahead, when you may read it.")
    never = serializers.BooleanField(help_text="Waiting alone will not resolve it.")
    text = serializers.CharField()
    since = serializers.DateTimeField()


class PrioritySerializer(StrictSerializer):
    priority = serializers.IntegerField(min_value=LOWEST, max_value=HIGHEST)


class PlaceSerializer(serializers.Serializer[Any]):
    priority = serializers.IntegerField()
    place = QueueEntrySerializer(allow_null=True)


class MovePoolSerializer(StrictSerializer):
    pool = serializers.CharField(max_length=64)
    training_pool = serializers.CharField(
        required=False, allow_blank=True, max_length=64, default="", help_text="The same as `pool` when absent."
    )


class DrainSerializer(StrictSerializer):
    mode = serializers.ChoiceField(MODES)
    deadline = serializers.DateTimeField(required=False, allow_null=True, help_text="Of mode stop, and of it alone.")
    note = serializers.CharField(required=False, allow_blank=True, max_length=MAX_NOTE)
    dry_run = serializers.BooleanField(
        required=False, default=False, help_text="Dry run: only report what would happen."
    )


class DrainProgressSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(["node", "device"])
    name = serializers.CharField()
    state = serializers.CharField()
    version = serializers.IntegerField()
    drain = DrainStateSerializer(allow_null=True)


class DrainedLeaseSerializer(serializers.Serializer[Any]):
    lease_id = serializers.IntegerField()
    device_id = serializers.CharField()
    use = serializers.ChoiceField(["engine", "trainer"])
    run = serializers.CharField(allow_null=True)
    run_text = serializers.CharField()
    agents = serializers.ListField(child=serializers.JSONField())
    moves_to = serializers.CharField(allow_null=True, help_text="Device that the arbiter would give now.")
    text = serializers.CharField()


class DrainedRunSerializer(serializers.Serializer[Any]):
    run = serializers.CharField(allow_null=True)
    run_text = serializers.CharField()
    web_url = serializers.CharField(required=False)
    status = serializers.CharField(required=False)
    leases = serializers.IntegerField()
    step = serializers.IntegerField(required=False)
    max_steps = serializers.IntegerField(required=False)
    step_seconds = serializers.FloatField(required=False, allow_null=True)
    eta_s = serializers.JSONField(required=False, allow_null=True)


class DrainPreviewSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(["node", "device"])
    name = serializers.CharField()
    version = serializers.IntegerField()
    mode = serializers.ChoiceField(MODES)
    leases = DrainedLeaseSerializer(many=True)
    runs = DrainedRunSerializer(many=True)
    queue = serializers.ListField(child=serializers.JSONField())
    text = serializers.CharField()
