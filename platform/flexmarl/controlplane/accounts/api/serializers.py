"""Shapes of people, projects, tokens and audit rows."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.accounts.actions import DEFAULT_TOKEN_DAYS, MAX_TOKEN_DAYS
from flexmarl.controlplane.accounts.choices import SERVICE_ROLES, Density, ProjectRole, Role, Theme, UserKind
from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.common.scopes import Scope

SCOPES = [str(scope) for scope in Scope]
SERVICE_CHOICES = [(role, word) for role, word in ProjectRole.choices if role in SERVICE_ROLES]


class UserSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    username = serializers.CharField()
    email = serializers.CharField(allow_blank=True)
    role = serializers.ChoiceField(Role.choices)
    is_active = serializers.BooleanField()
    last_sign_in = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class ProjectScopesSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    role = serializers.ChoiceField(ProjectRole.choices, allow_null=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES))


class MeSerializer(UserSerializer):
    kind = serializers.ChoiceField(UserKind.choices)
    theme = serializers.ChoiceField(Theme.choices)
    density = serializers.ChoiceField(Density.choices)
    letter_keys = serializers.BooleanField()
    time_zone = serializers.CharField()
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES), help_text="Granted in at least one project.")
    everywhere = serializers.ListField(child=serializers.ChoiceField(SCOPES), help_text="Granted in all projects.")
    projects = ProjectScopesSerializer(many=True)


class NewMembershipSerializer(StrictSerializer):
    project = serializers.CharField(max_length=64)
    role = serializers.ChoiceField(ProjectRole.choices)


class NewUserSerializer(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(
        max_length=128, required=False, help_text="Generated and returned once when absent."
    )
    email = serializers.EmailField(required=False, default="", allow_blank=True)
    role = serializers.ChoiceField(Role.choices, required=False, default=Role.MEMBER)
    memberships = NewMembershipSerializer(many=True, required=False, default=list)


class MadeUserSerializer(UserSerializer):
    password = serializers.CharField(
        required=False, allow_null=True, help_text="Only when it was generated. Shown once: null in a repetition."
    )


class UserChangesSerializer(StrictSerializer):
    role = serializers.ChoiceField(Role.choices, required=False)
    is_active = serializers.BooleanField(required=False)
    email = serializers.EmailField(required=False, allow_blank=True)


class PreferencesSerializer(StrictSerializer):
    theme = serializers.ChoiceField(Theme.choices, required=False)
    density = serializers.ChoiceField(Density.choices, required=False)
    letter_keys = serializers.BooleanField(required=False)
    time_zone = serializers.CharField(required=False, max_length=64)


class NewPasswordSerializer(StrictSerializer):
    current = serializers.CharField(max_length=128, trim_whitespace=False)
    new = serializers.CharField(max_length=128, trim_whitespace=False)


class ProjectSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    weight = serializers.FloatField(
        help_text="Share of pools relative to other projects whose runs wait with the same priority: twice the "
        "weight gets twice the devices."
    )
    member_count = serializers.IntegerField()
    service_account_count = serializers.IntegerField()
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES), help_text="The caller's scopes in it.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class NewProjectSerializer(StrictSerializer):
    name = serializers.CharField(max_length=64)
    description = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)


class ProjectChangesSerializer(StrictSerializer):
    description = serializers.CharField(max_length=300, required=False, allow_blank=True)
    weight = serializers.FloatField(
        required=False,
        help_text="0.1 to 100; by cluster admins.",
        error_messages={"invalid": "weight must be a number between 0.1 and 100."},
    )


class MemberSerializer(serializers.Serializer[Any]):
    user_id = serializers.UUIDField()
    username = serializers.CharField()
    is_active = serializers.BooleanField()
    project = serializers.CharField()
    role = serializers.ChoiceField(ProjectRole.choices)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class NewMemberSerializer(StrictSerializer):
    username = serializers.CharField(max_length=150)
    role = serializers.ChoiceField(ProjectRole.choices, required=False, default=ProjectRole.VIEWER)


class MemberChangesSerializer(StrictSerializer):
    role = serializers.ChoiceField(ProjectRole.choices)


class ServiceAccountSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    project = serializers.CharField()
    role = serializers.ChoiceField(SERVICE_CHOICES)
    is_active = serializers.BooleanField()
    token_count = serializers.IntegerField(help_text="Tokens that are not revoked.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class NewServiceAccountSerializer(StrictSerializer):
    name = serializers.CharField(max_length=150)
    role = serializers.ChoiceField(SERVICE_CHOICES, required=False, default=str(ProjectRole.EDITOR))


class ServiceAccountChangesSerializer(StrictSerializer):
    role = serializers.ChoiceField(SERVICE_CHOICES, required=False)
    is_active = serializers.BooleanField(required=False)


class TokenSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    key = serializers.CharField(help_text="The token's public part.")
    owner = serializers.CharField()
    created_by = serializers.CharField(allow_null=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES))
    projects = serializers.ListField(child=serializers.CharField(), help_text="Empty: all of its owner's.")
    networks = serializers.ListField(child=serializers.CharField(), help_text="Empty: any address.")
    state = serializers.ChoiceField(["active", "expired", "revoked"])
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
        child=serializers.CharField(), required=False, help_text="All scopes of the owner when absent."
    )
    projects = serializers.ListField(
        child=serializers.CharField(max_length=64), required=False, default=list, help_text="All when empty."
    )
    networks = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        default=list,
        help_text="Address ranges it may be used from, e.g. `10.0.0.0/8`; any when empty.",
    )
    expires_in_days = serializers.IntegerField(
        required=False, default=DEFAULT_TOKEN_DAYS, min_value=1, max_value=MAX_TOKEN_DAYS
    )


class TokenChangesSerializer(StrictSerializer):
    name = serializers.CharField(max_length=64)


class MadeTokenSerializer(TokenSerializer):
    token = serializers.CharField(allow_null=True, help_text="The token itself. Shown once: null in a repetition.")


class TicketSerializer(serializers.Serializer[Any]):
    ticket = serializers.CharField(help_text="For `/ws/v1/?ticket=`. Valid once.")
    expires_at = serializers.DateTimeField()


class AuditEntrySerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    at = serializers.DateTimeField()
    actor = serializers.CharField()
    actor_id = serializers.UUIDField(allow_null=True)
    action = serializers.CharField()
    target_kind = serializers.CharField()
    target_id = serializers.CharField()
    target_name = serializers.CharField(allow_blank=True)
    project = serializers.CharField(allow_null=True)
    request_id = serializers.CharField(allow_blank=True)
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)
    detail = serializers.JSONField()
