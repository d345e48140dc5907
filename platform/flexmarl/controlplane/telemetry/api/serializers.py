"""Shapes of trajectories, timelines, feeds and devices."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.common.models import WorkState
from flexmarl.controlplane.inventory.actions import MAX_NOTE
from flexmarl.controlplane.inventory.api.serializers import DrainStateSerializer


class NoteSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    level = serializers.CharField()
    actor = serializers.CharField(allow_blank=True)
    target = serializers.CharField(allow_blank=True)
    cause = serializers.CharField(allow_blank=True, help_text="X-Request-ID of what it follows from.")
    text = serializers.CharField()


class LineSerializer(NoteSerializer):
    """A line of a run, with the event that caused it."""

    seq = serializers.IntegerField()


class EventSerializer(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    at = serializers.DateTimeField()
    kind = serializers.CharField()
    actor = serializers.CharField(allow_blank=True, help_text="Actor; empty: the platform.")
    target = serializers.CharField(allow_blank=True, help_text="What it is about, e.g. `run` or `lease:3`.")
    cause = serializers.CharField(allow_blank=True, help_text="X-Request-ID of what it follows from.")
    notes = NoteSerializer(many=True)
    body = serializers.JSONField(required=False)


class EventsSerializer(serializers.Serializer[Any]):
    results = EventSerializer(many=True)
    next_after = serializers.IntegerField(help_text="`after` of the next request.")
    seq = serializers.IntegerField()


class CheckSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    ok = serializers.BooleanField()
    expected = serializers.IntegerField()
    found = serializers.IntegerField()
    detail = serializers.CharField()


class CheckProgressSerializer(serializers.Serializer[Any]):
    done = serializers.IntegerField()
    total = serializers.IntegerField()
    now = serializers.CharField(allow_blank=True, help_text="What is being read.")


class ConsistencyCheckSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    state = serializers.ChoiceField([state.value for state in WorkState])
    ok = serializers.BooleanField(allow_null=True, help_text="Null until it is done.")
    reason = serializers.CharField(allow_blank=True)
    reason_text = serializers.CharField(allow_blank=True)
    progress = CheckProgressSerializer()
    created_by = serializers.CharField(allow_null=True)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    allowed_actions = serializers.ListField(child=serializers.ChoiceField(["cancel"]))
    url = serializers.CharField()
    result_url = serializers.CharField()
    web_url = serializers.CharField()


class ConsistencySerializer(serializers.Serializer[Any]):
    ok = serializers.BooleanField(allow_null=True, help_text="Null until a check is done.")
    checked_at = serializers.DateTimeField(allow_null=True, help_text="When the last check was done.")
    seq = serializers.IntegerField(allow_null=True, help_text="Last event of the view of the rows that was checked.")
    checks = CheckSerializer(many=True)
    counts = serializers.DictField(child=serializers.IntegerField(), allow_null=True)
    check = ConsistencyCheckSerializer(allow_null=True, help_text="The newest check, whatever its state.")


class RunNameSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    project = serializers.CharField()
    web_url = serializers.CharField()


class LeaseSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    run_no = serializers.IntegerField()
    run = RunNameSerializer(allow_null=True, help_text="Null for runs of projects that you may not read.")
    run_text = serializers.CharField()
    agents = serializers.ListField(child=serializers.JSONField(), help_text="Roles whose work the lease does.")
    use = serializers.ChoiceField(["engine", "trainer"])
    state = serializers.ChoiceField(["held", "releasing"])
    granted_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    child_up = serializers.BooleanField()
    rank = serializers.IntegerField(help_text="Place of the device among those of its engine.")
    leader_id = serializers.IntegerField(help_text="The lease of the engine's first device; of one device its own.")
    leader_device = serializers.CharField()
    phase = serializers.CharField(allow_blank=True)
    policy = serializers.CharField(allow_blank=True)
    phase_ended_at = serializers.FloatField(allow_null=True)


class DeviceSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    node = serializers.CharField()
    kind = serializers.CharField()
    ordinal = serializers.IntegerField()
    name = serializers.CharField(allow_blank=True)
    memory_bytes = serializers.IntegerField()
    pool = serializers.CharField()
    state = serializers.ChoiceField(["ready", "cordoned", "draining", "drained", "lost"])
    node_state = serializers.CharField()
    note = serializers.CharField(allow_blank=True)
    drain = DrainStateSerializer(allow_null=True)
    load = serializers.JSONField(help_text="Latest measurements of the node agent.")
    facts = serializers.JSONField()
    version = serializers.IntegerField()
    free = serializers.BooleanField()
    lease = LeaseSerializer(allow_null=True)
    url = serializers.CharField()
    web_url = serializers.CharField()


class DeviceMoveSerializer(StrictSerializer):
    pool = serializers.CharField(required=False, max_length=64)
    note = serializers.CharField(required=False, allow_blank=True, max_length=MAX_NOTE)
