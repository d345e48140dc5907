"""Shapes of pools, quotas, nodes, devices' administration and their change log."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.inventory.actions import MAX_NOTE

NAME = r"^[a-z0-9][a-z0-9-]{0,63}$"
MOST_DEVICES = 1_000_000


class QuotaSerializer(serializers.Serializer[Any]):
    project = serializers.CharField()
    pool = serializers.CharField()
    devices = serializers.IntegerField(help_text="Maximum leased at once.")
    held = serializers.IntegerField(help_text="Leased now.")
    version = serializers.IntegerField()
    url = serializers.CharField()


class QuotaChangeSerializer(StrictSerializer):
    devices = serializers.IntegerField(min_value=0, max_value=MOST_DEVICES)


class PoolSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField(allow_null=True)
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    note = serializers.CharField(allow_blank=True)
    device_hour_price = serializers.FloatField(allow_null=True, help_text="In the installation's own unit.")
    is_default = serializers.BooleanField(help_text="Used by runs of projects that have no pool of their own.")
    default_of = serializers.ListField(child=serializers.CharField())
    projects = serializers.ListField(
        child=serializers.CharField(), help_text="Projects that may use it; empty: all projects."
    )
    quotas = QuotaSerializer(many=True)
    devices = serializers.IntegerField()
    free = serializers.IntegerField()
    leased = serializers.IntegerField()
    unavailable = serializers.IntegerField()
    created_at = serializers.DateTimeField(allow_null=True)
    updated_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class PoolMembersSerializer(StrictSerializer):
    description = serializers.CharField(required=False, allow_blank=True, max_length=300)
    note = serializers.CharField(required=False, allow_blank=True, max_length=MAX_NOTE)
    device_hour_price = serializers.FloatField(required=False, allow_null=True, min_value=0.0, max_value=1e6)
    is_default = serializers.BooleanField(required=False)
    projects = serializers.ListField(child=serializers.CharField(max_length=64), required=False, max_length=500)


class NewPoolSerializer(PoolMembersSerializer):
    name = serializers.RegexField(NAME)


class ProjectPoolSerializer(StrictSerializer):
    pool = serializers.CharField(allow_null=True, max_length=64, help_text="Null: the installation's default.")


class DrainStateSerializer(serializers.Serializer[Any]):
    mode = serializers.ChoiceField(["wait", "move", "stop"])
    deadline = serializers.DateTimeField(allow_null=True)
    by = serializers.CharField()
    since = serializers.DateTimeField()
    leases_left = serializers.IntegerField()
    done = serializers.BooleanField()


class NodeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    address = serializers.CharField()
    agent_version = serializers.CharField(allow_blank=True)
    facts = serializers.JSONField()
    load = serializers.JSONField(help_text="Latest measurements of its node agent.")
    state = serializers.CharField(help_text="ready, cordoned, draining, drained or silent.")
    rule = serializers.CharField(help_text="State set by an admin, without `silent`.")
    cordoned = serializers.BooleanField()
    note = serializers.CharField(allow_blank=True)
    drain = DrainStateSerializer(allow_null=True)
    leases = serializers.IntegerField()
    registered_at = serializers.DateTimeField()
    heartbeat_at = serializers.DateTimeField()
    silent_s = serializers.FloatField()
    uptime_s = serializers.FloatField(allow_null=True, help_text="Since the machine started, where reported.")
    devices = serializers.ListField(child=serializers.CharField())
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class HostActionSerializer(StrictSerializer):
    note = serializers.CharField(required=False, allow_blank=True, max_length=MAX_NOTE)


class NodeChangeSerializer(StrictSerializer):
    note = serializers.CharField(allow_blank=True, max_length=MAX_NOTE)


class ChangeSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    action = serializers.CharField()
    target_kind = serializers.ChoiceField(["node", "device", "pool"])
    target = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)
    detail = serializers.JSONField()
