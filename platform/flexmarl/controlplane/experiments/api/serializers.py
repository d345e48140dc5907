"""Shapes of experiments, templates, presets and plans."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import FieldErrorSerializer, StrictSerializer
from flexmarl.controlplane.experiments.plans import Draft


class ExperimentSerializer(serializers.Serializer):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    owner = serializers.CharField(allow_null=True)
    runs = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class NewExperimentSerializer(StrictSerializer):
    name = serializers.CharField(max_length=64)
    description = serializers.CharField(required=False, default="", allow_blank=True)
    project = serializers.CharField(required=False, default=DEFAULT_PROJECT, max_length=64)


class TemplateSerializer(serializers.Serializer):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    preset = serializers.CharField()
    expected = serializers.CharField()
    environment = serializers.CharField()
    environment_title = serializers.CharField()
    roles = serializers.ListField(child=serializers.CharField())
    spec = serializers.JSONField()
    sources = serializers.DictField(child=serializers.CharField())
    arithmetic = serializers.JSONField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class PresetSerializer(serializers.Serializer):
    name = serializers.CharField()
    title = serializers.CharField()
    description = serializers.CharField()
    paper = serializers.CharField(allow_blank=True)
    spec = serializers.JSONField()
    url = serializers.CharField()


class DraftSerializer(StrictSerializer):
    """A specification: a template, a document or YAML, and what to lay over it."""

    name = serializers.CharField(required=False, allow_blank=True, max_length=64, default="")
    template = serializers.CharField(required=False, allow_blank=True, default="")
    preset = serializers.CharField(required=False, allow_blank=True, default="")
    spec = serializers.DictField(required=False, help_text="Partial or complete specification.")
    yaml = serializers.CharField(required=False, allow_blank=True, default="", help_text="The same as YAML.")
    overrides = serializers.DictField(required=False, help_text="Partial specification laid over the rest.")

    def draft(self) -> Draft:
        """Return the draft of a valid body."""
        body: dict[str, Any] = self.validated_data
        return Draft(
            name=body["name"].strip(),
            template=body["template"],
            preset=body["preset"],
            spec=body.get("spec", {}),
            yaml=body["yaml"],
            overrides=body.get("overrides", {}),
        )


class PlanRequestSerializer(DraftSerializer):
    project = serializers.SlugField(
        required=False, allow_blank=True, max_length=64, default="", help_text="Whose pools it may use."
    )


class FitSerializer(serializers.Serializer):
    needed = serializers.ListField(child=serializers.JSONField())
    fits_now = serializers.BooleanField()
    fits_ever = serializers.BooleanField()
    text = serializers.CharField()


class PlanSerializer(serializers.Serializer):
    spec = serializers.JSONField(help_text="Null when it is refused.")
    sources = serializers.DictField(child=serializers.CharField())
    preset = serializers.CharField(allow_blank=True)
    template = serializers.CharField(allow_blank=True)
    arithmetic = serializers.JSONField(help_text="Null when it is refused.")
    errors = FieldErrorSerializer(many=True)
    warnings = FieldErrorSerializer(many=True)
    devices = FitSerializer(allow_null=True)
    plan_token = serializers.CharField(
        allow_null=True, help_text="Send it with the run: it is made as planned, or refused with `plan_stale`."
    )
