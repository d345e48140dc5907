"""Shapes of pools, nodes and devices."""

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer


class PoolSerializer(serializers.Serializer):
    id = serializers.UUIDField(allow_null=True)
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    devices = serializers.IntegerField()
    free = serializers.IntegerField()
    leased = serializers.IntegerField()
    unavailable = serializers.IntegerField()
    created_at = serializers.DateTimeField(allow_null=True)
    updated_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class NewPoolSerializer(StrictSerializer):
    name = serializers.RegexField(r"^[a-z0-9][a-z0-9-]{0,63}$")
    description = serializers.CharField(required=False, default="", allow_blank=True, max_length=300)


class PoolChangeSerializer(StrictSerializer):
    description = serializers.CharField(allow_blank=True, max_length=300)


class NodeSerializer(serializers.Serializer):
    name = serializers.CharField()
    address = serializers.CharField()
    agent_version = serializers.CharField(allow_blank=True)
    facts = serializers.JSONField()
    state = serializers.CharField()
    cordoned = serializers.BooleanField()
    registered_at = serializers.DateTimeField()
    heartbeat_at = serializers.DateTimeField()
    silent_s = serializers.FloatField()
    devices = serializers.ListField(child=serializers.CharField())
    url = serializers.CharField()
    web_url = serializers.CharField()


class DeviceChangeSerializer(StrictSerializer):
    pool = serializers.CharField()
