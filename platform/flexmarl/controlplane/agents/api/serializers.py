"""Shapes of agents and teams."""

from typing import Any

from rest_framework import serializers

from flexmarl.contracts.specification.instructions import MOST_CHARACTERS
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import FieldErrorSerializer, StrictSerializer, VersionedNameField

_SETTINGS = "What was set of the agent's settings in a specification: instructions, sampling, trainable."
_TEAM_SETTINGS = "What was set of graph, agents and policies, as a specification has them."


class AgentSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    role = serializers.CharField()
    hue = serializers.IntegerField(min_value=1, max_value=8)
    description = serializers.CharField(allow_blank=True)
    newest = serializers.IntegerField(
        allow_null=True, help_text="Number of the newest version; null for a role that only runs have used."
    )
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class AgentDetailSerializer(AgentSerializer):
    settings = serializers.JSONField(help_text=_SETTINGS)


class AgentVersionSerializer(serializers.Serializer[Any]):
    agent = serializers.UUIDField()
    role = serializers.CharField()
    number = serializers.IntegerField(min_value=1)
    settings = serializers.JSONField(help_text=_SETTINGS)
    note = serializers.CharField(allow_blank=True)
    author = serializers.CharField()
    created_at = serializers.DateTimeField()
    url = serializers.CharField()


class NewVersionSerializer(StrictSerializer):
    """Of an agent or a team."""

    name = VersionedNameField()
    project = serializers.SlugField(required=False, default=DEFAULT_PROJECT, max_length=64)
    description = serializers.CharField(required=False, allow_blank=True, max_length=300)
    note = serializers.CharField(required=False, allow_blank=True, max_length=300, help_text="What changed, and why.")
    based_on = serializers.IntegerField(
        required=False, min_value=0, help_text="Version that was edited, 0 for none: 409 if a newer one is there."
    )


class NewAgentVersionSerializer(NewVersionSerializer):
    settings = serializers.DictField(help_text=_SETTINGS)


class TeamSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    newest = serializers.IntegerField(help_text="Number of the newest version.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class TeamDetailSerializer(TeamSerializer):
    settings = serializers.JSONField(help_text=_TEAM_SETTINGS)


class TeamVersionSerializer(serializers.Serializer[Any]):
    team = serializers.UUIDField()
    name = serializers.CharField()
    number = serializers.IntegerField(min_value=1)
    settings = serializers.JSONField(help_text=_TEAM_SETTINGS)
    note = serializers.CharField(allow_blank=True)
    author = serializers.CharField()
    created_at = serializers.DateTimeField()
    url = serializers.CharField()


class NewTeamVersionSerializer(NewVersionSerializer):
    settings = serializers.DictField(help_text=_TEAM_SETTINGS)


class TeamCheckSerializer(StrictSerializer):
    settings = serializers.DictField(help_text=_TEAM_SETTINGS)


class TeamCheckedSerializer(serializers.Serializer[Any]):
    refused = FieldErrorSerializer(many=True, help_text="What saving would refuse; empty where it would save.")


class PreviewRequestSerializer(StrictSerializer):
    instructions = serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=MOST_CHARACTERS)
    role = serializers.CharField(max_length=32)
    team = serializers.ListField(child=serializers.CharField(max_length=32), min_length=1, max_length=16)
    environment = serializers.CharField(
        allow_blank=True, max_length=MOST_CHARACTERS, help_text="What the environment itself would say to the seat."
    )


class PreviewSerializer(serializers.Serializer[Any]):
    text = serializers.CharField(allow_blank=True, help_text="What the seat's model is told.")
