"""Shapes of datasets."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import StrictSerializer, VersionedNameField

_MAPPING = "Columns of the file: {prompt: question, answer: answer}, or {messages: messages, answer: answer}."
_SPLIT = "Rows kept for evaluation: {type: share, share: 0.1} or {type: count, rows: 100}."


class DatasetFileSerializer(serializers.Serializer[Any]):
    digest = serializers.CharField(help_text="SHA-256 of its bytes.")
    project = serializers.CharField()
    name = serializers.CharField()
    format = serializers.CharField(help_text="jsonl, csv or parquet.")
    bytes = serializers.IntegerField()


class UploadedFileSerializer(DatasetFileSerializer):
    columns = serializers.ListField(child=serializers.CharField(), help_text="Of its first rows.")
    mapping = serializers.JSONField(help_text="What the columns' names suggest.")
    examples = serializers.ListField(child=serializers.JSONField(), help_text="Its first rows, as they are.")


class DatasetSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    newest = serializers.IntegerField(help_text="Number of the newest version.")
    allowed_actions = serializers.ListField(child=serializers.CharField())
    archived_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField(help_text="Version of this row, for If-Match.")
    url = serializers.CharField()
    web_url = serializers.CharField()


class DatasetVersionSerializer(serializers.Serializer[Any]):
    dataset = serializers.UUIDField()
    name = serializers.CharField()
    project = serializers.CharField()
    number = serializers.IntegerField(min_value=1)
    digest = serializers.CharField(help_text="Of the rows, by which runs pin them.")
    training = serializers.IntegerField(help_text="Rows to train on.")
    held_out = serializers.IntegerField(help_text="Rows kept for evaluation; none of their prompts is trained on.")
    columns = serializers.ListField(child=serializers.CharField(), help_text="Kept beside messages and answer.")
    mapping = serializers.JSONField(help_text=_MAPPING)
    split = serializers.JSONField(help_text=_SPLIT)
    file = DatasetFileSerializer()
    note = serializers.CharField(allow_blank=True)
    author = serializers.CharField()
    created_at = serializers.DateTimeField()
    url = serializers.CharField()


class DatasetContentRowSerializer(serializers.Serializer[Any]):
    place = serializers.IntegerField(help_text="In the file, from 1.")
    held_out = serializers.BooleanField()
    messages = serializers.ListField(child=serializers.JSONField(), help_text="What is asked: {role, content}.")
    answer = serializers.CharField(allow_blank=True)
    columns = serializers.JSONField(help_text="The row's other columns.")


class DatasetPreviewSerializer(serializers.Serializer[Any]):
    training = serializers.IntegerField()
    held_out = serializers.IntegerField()
    digest = serializers.CharField()
    columns = serializers.ListField(child=serializers.CharField())
    examples = DatasetContentRowSerializer(many=True)


class DatasetPreviewRequestSerializer(StrictSerializer):
    project = serializers.SlugField(required=False, default=DEFAULT_PROJECT, max_length=64)
    file = serializers.RegexField(r"^[0-9a-f]{64}$", help_text="Digest of an uploaded file.")
    mapping = serializers.DictField(help_text=_MAPPING)
    split = serializers.DictField(required=False, default=dict, help_text=_SPLIT)


class NewDatasetVersionSerializer(DatasetPreviewRequestSerializer):
    name = VersionedNameField()
    description = serializers.CharField(required=False, allow_blank=True, max_length=300)
    note = serializers.CharField(required=False, allow_blank=True, max_length=300, help_text="What changed, and why.")


class ScoreRequestSerializer(StrictSerializer):
    scores = serializers.ListField(
        child=serializers.JSONField(), min_length=1, max_length=16, help_text="As in a specification: [{type: exact}]."
    )
    reply = serializers.CharField(allow_blank=True, trim_whitespace=False, max_length=20_000)


class ScoreSerializer(serializers.Serializer[Any]):
    score = serializers.FloatField(
        allow_null=True, help_text="Weighted mean of the parts, from 0 to 1; null where one is missing."
    )
    parts = serializers.JSONField(
        help_text="Name of a score -> what the reply is worth by it, from 0 to 1; null where it was not computed."
    )
    why = serializers.DictField(child=serializers.CharField(), help_text="Name of a score -> why, where it says so.")
    broken = serializers.ListField(child=serializers.CharField(), help_text="Scores that raised.")
    sandbox = serializers.CharField(
        allow_blank=True, help_text="What confines programs where this was computed; empty: no program was run."
    )
