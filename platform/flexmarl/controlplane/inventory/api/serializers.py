"""Shapes of pools, quotas, nodes, devices' administration and their change log."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.inventory.actions import MAX_NOTE

NAME = r"^[a-z0-9][a-z0-9-]{0,63}$"
MOST_DEVICES = 1_000_000
_PROVIDER = (
    "Host provider: {type: static}, {type: slurm, partition: gpu, kind: cuda, devices: 8, max_nodes: 4}, "
    "{type: ray, address: 10.0.0.4:6379, kind: cuda, devices: 8, max_nodes: 4}, or {type: kubernetes, namespace: "
    "training, image: registry.example.org/flexmarl:1.4, volume_claims: {/srv/flexmarl: flexmarl-home}}, with the "
    "other options of docs/clusters.md."
)

_PREEMPTIBLE = "Its hosts may be taken away at any time: plans place rollout there, but no training."


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
    preemptible = serializers.BooleanField(help_text=_PREEMPTIBLE)
    provider = serializers.DictField(help_text=_PROVIDER)
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
    preemptible = serializers.BooleanField(required=False, help_text=_PREEMPTIBLE)
    provider = serializers.DictField(required=False, help_text=_PROVIDER)
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


class NodeClockSerializer(serializers.Serializer[Any]):
    offset_s = serializers.FloatField(help_text="The database's clock less the node's.")
    round_trip_s = serializers.FloatField(help_text="Half of it bounds the error.")
    state = serializers.ChoiceField(["ok", "off"], help_text="off: by more than a second.")
    reason = serializers.CharField(allow_blank=True)
    next_step = serializers.CharField(allow_blank=True)


class NodeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    address = serializers.CharField()
    agent_version = serializers.CharField(allow_blank=True)
    facts = serializers.JSONField()
    load = serializers.JSONField(help_text="Latest measurements of its node agent.")
    clock = NodeClockSerializer(allow_null=True, help_text="Null until its agent has measured it.")
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


class HostJobSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    pool = serializers.CharField()
    provider = serializers.CharField()
    native = serializers.CharField(allow_blank=True, help_text="The provider's number of it.")
    name = serializers.CharField(help_text="The provider's name of it.")
    node = serializers.CharField()
    registered = serializers.BooleanField(help_text="Its node agent has registered.")
    state = serializers.ChoiceField(["requested", "refused", "pending", "running", "leaving", "ended", "failed"])
    cancelling = serializers.BooleanField()
    reason = serializers.CharField(allow_blank=True, help_text="In the provider's words.")
    next_step = serializers.CharField(allow_blank=True, help_text="What to do about a refusal, or no answer.")
    place = serializers.CharField(allow_blank=True, help_text="The provider's name of its host.")
    why = serializers.CharField(allow_blank=True, help_text="What it was requested for, then why it ends.")
    leases = serializers.IntegerField()
    devices = serializers.IntegerField()
    device_hours = serializers.FloatField(help_text="Until now, or its end.")
    cost = serializers.FloatField(allow_null=True, help_text="In the installation's own unit; null without a price.")
    requested_at = serializers.DateTimeField()
    submitted_at = serializers.DateTimeField(allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    leaving_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    url = serializers.CharField()


class HostSubmissionSerializer(serializers.Serializer[Any]):
    provider = serializers.CharField()
    command = serializers.CharField()
    script = serializers.CharField(help_text="Its standard input, or what an actor of Ray starts.")
    settings_file = serializers.CharField(help_text="File with the secrets of the hosts; only its owner can read it.")
    notices = serializers.ListField(child=serializers.CharField(), help_text="What would keep a host from working.")
    offers = serializers.ListField(child=serializers.CharField(), help_text="What the cluster has now, where it says.")


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
