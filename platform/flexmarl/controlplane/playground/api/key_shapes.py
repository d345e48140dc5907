"""Shapes of serving keys and of their use."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.playground.keys import DEFAULT_REQUESTS, DEFAULT_TOKENS

_MODELS_TEXT = "Models that it may ask, `<run>/<agent>` or `<run>/<agent>@<version>`; empty: all of the project."


class ServingUseSerializer(serializers.Serializer[Any]):
    requests = serializers.IntegerField(help_text="Calls that were let in.")
    refused = serializers.IntegerField(help_text="Calls that a quota kept out.")
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    tokens = serializers.IntegerField(help_text="Both together.")


class ServingDaySerializer(ServingUseSerializer):
    day = serializers.DateField(help_text="Of UTC.")


class ServingKeySerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    key = serializers.CharField(help_text="The key's public part.")
    project = serializers.CharField()
    created_by = serializers.CharField(allow_null=True)
    models = serializers.ListField(child=serializers.CharField(), help_text=_MODELS_TEXT)
    requests_per_minute = serializers.IntegerField()
    tokens_per_day = serializers.IntegerField()
    today = ServingUseSerializer(help_text="Since midnight, UTC.")
    state = serializers.ChoiceField(["active", "revoked"])
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class MadeServingKeySerializer(ServingKeySerializer):
    secret = serializers.CharField(allow_null=True, help_text="The key itself. Shown once: null in a repetition.")


class ServingKeyChangesSerializer(StrictSerializer):
    name = serializers.CharField(max_length=64, required=False)
    models = serializers.ListField(child=serializers.CharField(max_length=200), required=False, help_text=_MODELS_TEXT)
    requests_per_minute = serializers.IntegerField(required=False, min_value=1)
    tokens_per_day = serializers.IntegerField(required=False, min_value=1)


class NewServingKeySerializer(ServingKeyChangesSerializer):
    name = serializers.CharField(max_length=64)
    models = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, default=list, help_text=_MODELS_TEXT
    )
    requests_per_minute = serializers.IntegerField(required=False, default=DEFAULT_REQUESTS, min_value=1)
    tokens_per_day = serializers.IntegerField(required=False, default=DEFAULT_TOKENS, min_value=1)
