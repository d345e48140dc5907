"""Shapes of agents."""

from typing import Any

from rest_framework import serializers


class AgentSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    role = serializers.CharField()
    hue = serializers.IntegerField(min_value=1, max_value=8)
    description = serializers.CharField(allow_blank=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()
