"""Shapes of suites and evaluations."""

from typing import Any

from rest_framework import serializers

from flexmarl.contracts.suites import MOST_ENTRIES
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.api.serializers import StrictSerializer, VersionedNameField

_CONTENT = (
    "parts: list of {name, environment, reward, tasks}, the first two as in a specification; attempts per task; "
    "greedy; seed; sampling as of an agent."
)
_ENTRY = "{name, model, precision} or {name, external}: model and external as in a specification."
STATES = ("waiting", "running", "stopped", "failed", "done")


class SuiteSerializer(serializers.Serializer[Any]):
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


class SuiteVersionSerializer(serializers.Serializer[Any]):
    suite = serializers.UUIDField()
    name = serializers.CharField()
    project = serializers.CharField()
    number = serializers.IntegerField(min_value=1)
    content = serializers.JSONField(help_text=_CONTENT)
    note = serializers.CharField(allow_blank=True)
    author = serializers.CharField()
    created_at = serializers.DateTimeField()
    url = serializers.CharField()


class SuiteDetailSerializer(SuiteSerializer):
    content = serializers.JSONField(help_text="Of the newest version. " + _CONTENT)


class NewSuiteVersionSerializer(StrictSerializer):
    name = VersionedNameField()
    project = serializers.SlugField(required=False, default=DEFAULT_PROJECT, max_length=64)
    description = serializers.CharField(required=False, allow_blank=True, max_length=300)
    content = serializers.DictField(help_text=_CONTENT)
    note = serializers.CharField(required=False, allow_blank=True, max_length=300, help_text="What changed, and why.")
    based_on = serializers.IntegerField(
        required=False, min_value=0, help_text="Version that was edited, 0 for none: 409 if a newer one is there."
    )


class RateSerializer(serializers.Serializer[Any]):
    value = serializers.FloatField()
    low = serializers.FloatField(help_text="Lower end of the 95 % interval.")
    high = serializers.FloatField(help_text="Upper end of the 95 % interval.")
    tasks = serializers.IntegerField(help_text="Tasks that count.")
    method = serializers.ChoiceField(("wilson", "bootstrap"), help_text="How the interval was made; over tasks.")


class LeaderboardRowSerializer(serializers.Serializer[Any]):
    label = serializers.CharField()  # type: ignore[assignment]
    evaluation = serializers.UUIDField()
    web_url = serializers.CharField()
    pass_at_1 = RateSerializer()
    pass_at = serializers.DictField(child=RateSerializer(allow_null=True), help_text="k -> pass@k over all parts.")
    parts = serializers.DictField(child=RateSerializer(allow_null=True), help_text="Part -> pass@1.")
    score = serializers.FloatField(help_text="Mean team score.")
    tokens = serializers.IntegerField()
    attempt_seconds = serializers.FloatField(help_text="Mean over attempts.")
    behind_best = serializers.FloatField(help_text="Difference of pass@1 to the first row.")
    p = serializers.FloatField(
        allow_null=True, help_text="Sign-flip test over tasks against the first row, Holm-corrected for all rows."
    )
    significant = serializers.BooleanField(allow_null=True, help_text="p < 0.05; null for the first row.")


class LeaderboardSerializer(SuiteVersionSerializer):
    ks = serializers.ListField(child=serializers.IntegerField())
    rows = LeaderboardRowSerializer(many=True)


class EvaluationSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    name = serializers.CharField()
    suite = serializers.CharField()
    suite_id = serializers.UUIDField()
    suite_version = serializers.IntegerField()
    models = serializers.ListField(child=serializers.CharField())
    owner = serializers.CharField(allow_null=True)
    note = serializers.CharField(allow_blank=True)
    created_at = serializers.DateTimeField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class EvaluationCellSerializer(serializers.Serializer[Any]):
    entry = serializers.IntegerField()
    part = serializers.CharField()
    state = serializers.ChoiceField(STATES)
    reason = serializers.CharField(allow_blank=True)
    next_step = serializers.CharField(allow_blank=True)
    run = serializers.CharField(allow_null=True, help_text="Key of the run that plays it.")
    web_url = serializers.CharField(allow_null=True)
    trajectories_url = serializers.CharField(allow_null=True)
    tasks = serializers.IntegerField()
    tasks_played = serializers.IntegerField()
    attempts = serializers.IntegerField(help_text="Attempts that finished.")
    attempts_failed = serializers.IntegerField(help_text="Left out of every figure.")
    solved = serializers.IntegerField()
    pass_at = serializers.DictField(child=RateSerializer(allow_null=True))
    score = RateSerializer(allow_null=True)
    seats = serializers.DictField(child=serializers.FloatField(), help_text="Seat -> mean reward.")
    tokens = serializers.IntegerField()
    attempt_seconds = serializers.FloatField(help_text="Mean over attempts.")


class EvaluatedRowSerializer(serializers.Serializer[Any]):
    entry = serializers.IntegerField()
    label = serializers.CharField()  # type: ignore[assignment]
    model = serializers.JSONField(allow_null=True)
    external = serializers.JSONField(allow_null=True)
    cells = EvaluationCellSerializer(many=True)


class EvaluationDetailSerializer(EvaluationSerializer):
    state = serializers.ChoiceField(STATES)
    parts = serializers.ListField(child=serializers.CharField())
    attempts = serializers.IntegerField()
    greedy = serializers.BooleanField()
    seed = serializers.IntegerField()
    ks = serializers.ListField(child=serializers.IntegerField())
    table = EvaluatedRowSerializer(many=True)
    allowed_actions = serializers.ListField(child=serializers.CharField())


class NewEvaluationSerializer(StrictSerializer):
    name = serializers.CharField(max_length=64)
    suite = serializers.UUIDField()
    suite_version = serializers.IntegerField(
        required=False, min_value=1, max_value=2**31 - 1, help_text="The newest when absent."
    )
    entries = serializers.ListField(child=serializers.DictField(), max_length=MOST_ENTRIES, help_text=_ENTRY)
    note = serializers.CharField(required=False, allow_blank=True, max_length=300)


class EvaluationVerbSerializer(StrictSerializer):
    entries = serializers.ListField(
        required=False, max_length=MOST_ENTRIES, help_text="Places of the models; all when absent.",
        child=serializers.IntegerField(min_value=0, max_value=MOST_ENTRIES - 1),
    )  # fmt: skip
