"""Shapes of datasets."""

from typing import Any

from rest_framework import serializers

from flexmarl.contracts.hub_datasets import MOST_SHOWN
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import StrictSerializer, VersionedNameField
from flexmarl.controlplane.common.models import WorkState

_MAPPING = (
    "Columns of the file: {prompt: question, answer: answer}, {messages: messages, answer: answer}, or of NeMo Gym "
    "{request: responses_create_params}."
)
_SPLIT = (
    "Rows kept for evaluation: {type: share, share: 0.1}, {type: count, rows: 100}, or those of splits of a hub: "
    "{type: splits, held_out: [test]}."
)


class OriginFileSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    split = serializers.CharField()
    format = serializers.CharField(help_text="jsonl, csv or parquet.")
    bytes = serializers.IntegerField()
    digest = serializers.CharField(help_text="SHA-256 of its bytes.")


class DatasetOriginSerializer(serializers.Serializer[Any]):
    repository = serializers.CharField()
    revision = serializers.CharField(help_text="As it was asked for.")
    commit = serializers.CharField(help_text="What that revision was then.")
    configuration = serializers.CharField()
    licence = serializers.CharField(allow_blank=True, help_text="As the repository's card says; empty: it does not.")
    files = OriginFileSerializer(many=True)


class DatasetFileSerializer(serializers.Serializer[Any]):
    digest = serializers.CharField(help_text="SHA-256 of its bytes.")
    project = serializers.CharField()
    name = serializers.CharField()
    format = serializers.CharField(help_text="jsonl, csv or parquet; tar: an archive of files of a hub.")
    bytes = serializers.IntegerField()
    origin = DatasetOriginSerializer(allow_null=True, help_text="Where its files are from; null: it was uploaded.")


class UploadedFileSerializer(DatasetFileSerializer):
    columns = serializers.ListField(child=serializers.CharField(), help_text="Of its first rows.")
    mapping = serializers.JSONField(help_text="What the columns' names suggest.")
    splits = serializers.ListField(child=serializers.CharField(), help_text="That the hub has its rows in.")
    split = serializers.JSONField(help_text="What the splits' names suggest to hold out.")
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


class NewDatasetFetchSerializer(StrictSerializer):
    project = serializers.SlugField(required=False, default=DEFAULT_PROJECT, max_length=64)
    repository = serializers.CharField(max_length=200, help_text="Owner and name: openai/gsm8k.")
    revision = serializers.CharField(required=False, default="main", max_length=200, help_text="Branch, tag or commit.")
    secret = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=64,
        help_text="Name of a secret of the nodes, for what is not public.",
    )  # fmt: skip
    configuration = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=200, help_text="Empty: list what there is."
    )
    splits = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, default=list, max_length=MOST_SHOWN,
        help_text="Splits of the configuration that are fetched, as one file.",
    )  # fmt: skip


class FoundSplitSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    files = serializers.IntegerField()
    bytes = serializers.IntegerField()


class FoundConfigurationSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    splits = FoundSplitSerializer(many=True)
    refused = serializers.CharField(
        allow_blank=True, help_text="Why it cannot be fetched, and what to do instead; empty: it can."
    )


class LeftOutFileSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    why = serializers.CharField()


class DatasetFetchSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    repository = serializers.CharField()
    revision = serializers.CharField()
    secret = serializers.CharField(allow_blank=True)
    configuration = serializers.CharField(allow_blank=True)
    splits = serializers.ListField(child=serializers.CharField())
    state = serializers.ChoiceField([str(one) for one in WorkState])
    reason = serializers.CharField(allow_blank=True, help_text="Why it failed: see docs/refusals.md.")
    reason_text = serializers.CharField(allow_blank=True)
    now = serializers.CharField(allow_blank=True, help_text="What is being done: looking, fetching, storing.")
    done_bytes = serializers.IntegerField(help_text="That were fetched.")
    bytes = serializers.IntegerField(help_text="Of all files; 0 while they are not known.")
    commit = serializers.CharField(allow_blank=True, help_text="That the revision is; empty until it is known.")
    licence = serializers.CharField(allow_blank=True)
    configurations = FoundConfigurationSerializer(many=True, help_text="Of a listing: what there is to fetch.")
    left_out = LeftOutFileSerializer(many=True, help_text="Of a listing: files that are not imported.")
    file = serializers.CharField(allow_null=True, help_text="Digest of what was fetched, to preview and save.")
    owner = serializers.CharField(allow_null=True)
    allowed_actions = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField(help_text="Version of this row, for If-Match.")
    url = serializers.CharField()
