"""Shapes of people and tokens."""

from rest_framework import serializers

from flexmarl.controlplane.accounts.actions import DEFAULT_TOKEN_DAYS, MAX_TOKEN_DAYS
from flexmarl.controlplane.accounts.choices import Role, Theme
from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.common.scopes import Scope

SCOPES = [str(scope) for scope in Scope]


class UserSerializer(serializers.Serializer):
    id = serializers.UUIDField()
    username = serializers.CharField()
    email = serializers.CharField(allow_blank=True)
    role = serializers.ChoiceField(Role.choices)
    is_active = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()


class ProjectScopesSerializer(serializers.Serializer):
    name = serializers.CharField()
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES))


class MeSerializer(UserSerializer):
    theme = serializers.ChoiceField(Theme.choices)
    time_zone = serializers.CharField()
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES), help_text="Held somewhere.")
    projects = ProjectScopesSerializer(many=True)


class NewUserSerializer(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=128)
    email = serializers.EmailField(required=False, default="", allow_blank=True)
    role = serializers.ChoiceField(Role.choices, required=False, default=Role.MEMBER)


class PreferencesSerializer(StrictSerializer):
    theme = serializers.ChoiceField(Theme.choices, required=False)
    time_zone = serializers.CharField(required=False)


class TokenSerializer(serializers.Serializer):
    id = serializers.UUIDField()
    name = serializers.CharField()
    key = serializers.CharField(help_text="The token's public part.")
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES))
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class NewTokenSerializer(StrictSerializer):
    name = serializers.CharField(max_length=64)
    scopes = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="All scopes of the caller when absent."
    )
    expires_in_days = serializers.IntegerField(
        required=False, default=DEFAULT_TOKEN_DAYS, min_value=1, max_value=MAX_TOKEN_DAYS
    )


class MadeTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="The token's text. It is shown once.")
