"""Shapes of trajectories, their groups and their comparison."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.runs.models.label import MAX_COMMENT, MAX_LABEL


class LabelSerializer(serializers.Serializer[Any]):
    label = serializers.CharField()  # type: ignore[assignment]
    comment = serializers.CharField(allow_blank=True)
    author = serializers.CharField()
    at = serializers.DateTimeField()


class LabelBodySerializer(StrictSerializer):
    label = serializers.CharField(max_length=MAX_LABEL)  # type: ignore[assignment]
    comment = serializers.CharField(max_length=MAX_COMMENT, allow_blank=True, required=False)


class _TrajectorySerializer(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="<draw>-<member>-<attempt>")
    draw = serializers.IntegerField()
    member = serializers.IntegerField()
    attempt = serializers.IntegerField()
    step = serializers.IntegerField(help_text="Train step it was played for, from 1; held out: after which.")
    origin = serializers.ChoiceField(["train", "eval"])
    status = serializers.ChoiceField(["finished", "failed", "cancelled"])
    reason = serializers.CharField(allow_blank=True)
    solved = serializers.BooleanField()
    team_score = serializers.FloatField()
    scores = serializers.DictField(child=serializers.FloatField())
    tokens = serializers.IntegerField()
    duration_s = serializers.FloatField()
    pins = serializers.DictField(child=serializers.IntegerField(), help_text="Policy -> version it was played with.")
    title = serializers.CharField(allow_blank=True)
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class TrajectorySerializer(_TrajectorySerializer):
    turns = serializers.IntegerField()
    labels = LabelSerializer(many=True)


class _ReadSerializer(serializers.Serializer[Any]):
    speaker = serializers.ChoiceField(["system", "user", "assistant", "tool", ""])
    text = serializers.CharField(allow_blank=True)


class _CallSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    arguments = serializers.DictField()


class TurnSerializer(serializers.Serializer[Any]):
    role = serializers.CharField()
    turn = serializers.IntegerField()
    chain = serializers.IntegerField(
        help_text="First turn of its training row: a chain of turns, in each of which the "
        "prompt begins with all that the role read and said before."
    )
    broken = serializers.CharField(
        allow_blank=True, help_text="Why its prompt does not go on from what the role read and said before, or empty."
    )
    read = _ReadSerializer(
        many=True, help_text="Messages that are new in its prompt; none where nobody is named in it."
    )
    reasoning = serializers.CharField(allow_blank=True, help_text="What the reply thinks before it speaks.")
    content = serializers.CharField(allow_blank=True, help_text="What the reply says.")
    tool_calls = _CallSerializer(many=True)
    policy = serializers.CharField()
    version = serializers.IntegerField()
    segments = serializers.ListField(child=serializers.IntegerField())
    prompt_text = serializers.CharField(allow_blank=True, help_text="With special tokens.")
    prompt_rendered = serializers.CharField(allow_blank=True, help_text="Without special tokens.")
    prompt_tokens = serializers.IntegerField()
    response_text = serializers.CharField(allow_blank=True, help_text="With special tokens.")
    response_rendered = serializers.CharField(allow_blank=True, help_text="Without special tokens.")
    response_tokens = serializers.IntegerField()
    allowed_tokens = serializers.IntegerField(help_text="0: the whole vocabulary was allowed.")
    advantage = serializers.FloatField(allow_null=True)
    weight = serializers.FloatField(allow_null=True)
    micro_batch = serializers.IntegerField(allow_null=True)
    micro_batch_state = serializers.ChoiceField(["cut", "accumulated", "applied", "void"], allow_null=True)
    trained_step = serializers.IntegerField(allow_null=True, help_text="Step its micro-batch belongs to, from 1.")
    trained_version = serializers.IntegerField(allow_null=True, help_text="Version that this step committed.")
    staleness = serializers.IntegerField(allow_null=True, help_text="Trained version minus behaviour version.")
    in_loss = serializers.BooleanField()
    unreadable = serializers.CharField(allow_blank=True, help_text="Reason its payload could not be read, or empty.")
    reward = serializers.FloatField()
    temperature = serializers.FloatField()
    latency_ms = serializers.FloatField()
    engine = serializers.CharField(allow_blank=True, help_text="Incarnation that answered.")
    finish = serializers.CharField()


class GroupMemberSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    member = serializers.IntegerField()
    attempt = serializers.IntegerField()
    status = serializers.CharField()
    team_score = serializers.FloatField()
    scores = serializers.DictField(child=serializers.FloatField())
    solved = serializers.BooleanField()
    turns = serializers.IntegerField()
    tokens = serializers.IntegerField()


class JudgedAnswerSerializer(serializers.Serializer[Any]):
    role = serializers.CharField()
    turn = serializers.IntegerField()
    parts = serializers.DictField(child=serializers.FloatField(), help_text="Name of a score -> from 0 to 1.")
    why = serializers.DictField(
        child=serializers.CharField(allow_blank=True), help_text="Name of a score -> why: a failed test, a verdict."
    )


class TrajectoryDetailSerializer(_TrajectorySerializer):
    task = serializers.JSONField()
    transcript = serializers.JSONField()
    facts = serializers.DictField(
        child=serializers.FloatField(), help_text="What the environment counted, such as the parts of a score."
    )
    judged = JudgedAnswerSerializer(many=True, help_text="Answers with what each score says of them.")
    turns = TurnSerializer(many=True)
    group = GroupMemberSerializer(many=True)
    labels = LabelSerializer(many=True)


class TurnTokensSerializer(serializers.Serializer[Any]):
    role = serializers.CharField()
    turn = serializers.IntegerField()
    prompt_ids = serializers.ListField(child=serializers.IntegerField())
    context_texts = serializers.ListField(
        child=serializers.CharField(allow_blank=True),
        help_text="Of the prompt's tokens, those behind its chain so far.",
    )
    ids = serializers.ListField(child=serializers.IntegerField())
    texts = serializers.ListField(child=serializers.CharField(allow_blank=True))
    logprobs = serializers.ListField(child=serializers.FloatField())
    versions = serializers.ListField(child=serializers.IntegerField())
    allowed_ids = serializers.ListField(child=serializers.IntegerField())
    advantage = serializers.FloatField(allow_null=True)
    in_loss = serializers.BooleanField()


class TokensSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    turns = TurnTokensSerializer(many=True)


class BinSerializer(serializers.Serializer[Any]):
    low = serializers.FloatField()
    high = serializers.FloatField()
    count = serializers.IntegerField()


class FacetsSerializer(serializers.Serializer[Any]):
    counted = serializers.IntegerField(help_text="Matching episodes that were counted, the newest ones.")
    exact = serializers.BooleanField(help_text="Whether these are all that match.")
    outcomes = serializers.DictField(child=serializers.IntegerField())
    histogram = BinSerializer(many=True, help_text="Team scores of the finished ones.")


class _MemberOfGroupSerializer(GroupMemberSerializer):
    advantages = serializers.DictField(
        child=serializers.FloatField(), help_text="Role -> advantage of its turns, where all of them have the same."
    )


class _StatisticsSerializer(serializers.Serializer[Any]):
    finished = serializers.IntegerField()
    solved = serializers.IntegerField()
    mean = serializers.FloatField(allow_null=True)
    deviation = serializers.FloatField(allow_null=True, help_text="Of the population, as advantages use it.")
    best = serializers.CharField(allow_null=True)
    worst = serializers.CharField(allow_null=True)
    useful = serializers.BooleanField(help_text="Whether any two finished members scored differently.")
    roles = serializers.DictField(child=serializers.DictField(child=serializers.FloatField()))


class _GroupRulingSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="As in the run's decisions.")
    reason = serializers.CharField()


class GroupSerializer(serializers.Serializer[Any]):
    draw = serializers.IntegerField()
    step = serializers.IntegerField()
    origin = serializers.ChoiceField(["train", "eval"])
    title = serializers.CharField(allow_blank=True)
    statistics = _StatisticsSerializer()
    rulings = _GroupRulingSerializer(many=True, help_text="What became of the group, such as an injected success.")
    members = _MemberOfGroupSerializer(many=True)


class _CellSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    version = serializers.IntegerField()
    parts = serializers.ListField(child=serializers.ListField(), help_text="[text, whether it differs]")


class _CompareRowSerializer(serializers.Serializer[Any]):
    no = serializers.IntegerField(help_text="Turn, from 1.")
    role = serializers.CharField()
    cells = serializers.ListField(child=_CellSerializer(allow_null=True), help_text="null: it had ended.")


class _DifferenceSerializer(serializers.Serializer[Any]):
    no = serializers.IntegerField()
    role = serializers.CharField()


class ComparedEpisodesSerializer(GroupSerializer):
    rows = _CompareRowSerializer(many=True)
    first_difference = _DifferenceSerializer(allow_null=True)
