"""Shapes of trajectories, timelines, feeds and devices."""

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer


class _TrajectorySerializer(serializers.Serializer):
    id = serializers.CharField(help_text="<draw>-<member>-<attempt>")
    draw = serializers.IntegerField()
    member = serializers.IntegerField()
    attempt = serializers.IntegerField()
    step = serializers.IntegerField(help_text="Train step it was played for, or after which, when held out.")
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


class TokenInTurnSerializer(serializers.Serializer):
    id = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True)
    logprob = serializers.FloatField()


class TurnSerializer(serializers.Serializer):
    role = serializers.CharField()
    turn = serializers.IntegerField()
    policy = serializers.CharField()
    version = serializers.IntegerField()
    segments = serializers.ListField(child=serializers.IntegerField())
    prompt_text = serializers.CharField(allow_blank=True)
    prompt_tokens = serializers.IntegerField()
    response_text = serializers.CharField(allow_blank=True)
    tokens = TokenInTurnSerializer(many=True)
    allowed_tokens = serializers.IntegerField(help_text="0: the whole vocabulary was allowed.")
    advantage = serializers.FloatField(allow_null=True)
    weight = serializers.FloatField(allow_null=True)
    micro_batch = serializers.IntegerField(allow_null=True)
    in_loss = serializers.BooleanField()
    reward = serializers.FloatField()
    temperature = serializers.FloatField()
    latency_ms = serializers.FloatField()
    finish = serializers.CharField()


class GroupMemberSerializer(serializers.Serializer):
    id = serializers.CharField()
    member = serializers.IntegerField()
    attempt = serializers.IntegerField()
    status = serializers.CharField()
    team_score = serializers.FloatField()
    solved = serializers.BooleanField()


class TrajectoryDetailSerializer(_TrajectorySerializer):
    task = serializers.JSONField()
    transcript = serializers.JSONField()
    turns = TurnSerializer(many=True)
    group = GroupMemberSerializer(many=True)


class DeviceTimelineSerializer(serializers.Serializer):
    device_id = serializers.CharField()
    node = serializers.CharField()
    kind = serializers.CharField()
    use = serializers.ChoiceField(["engine", "trainer"])
    lease_id = serializers.IntegerField()
    lease_state = serializers.CharField()
    held_since = serializers.FloatField()
    held_until = serializers.FloatField(allow_null=True)
    intervals = serializers.ListField(child=serializers.ListField(), help_text="[start, end, phase, policy]")
    busy_share = serializers.FloatField()
    bubble_share = serializers.FloatField()
    tokens = serializers.IntegerField()


class TimelineSerializer(serializers.Serializer):
    devices = DeviceTimelineSerializer(many=True)
    window = serializers.ListField(child=serializers.FloatField(), min_length=2, max_length=2)
    seq = serializers.IntegerField()


class NoteSerializer(serializers.Serializer):
    at = serializers.DateTimeField()
    level = serializers.CharField()
    actor = serializers.CharField(allow_blank=True)
    target = serializers.CharField(allow_blank=True)
    text = serializers.CharField()


class EventSerializer(serializers.Serializer):
    seq = serializers.IntegerField()
    at = serializers.DateTimeField()
    kind = serializers.CharField()
    notes = NoteSerializer(many=True)
    body = serializers.JSONField(required=False)


class EventsSerializer(serializers.Serializer):
    results = EventSerializer(many=True)
    next_after = serializers.IntegerField(help_text="`after` of the next request.")
    seq = serializers.IntegerField()


class CheckSerializer(serializers.Serializer):
    name = serializers.CharField()
    ok = serializers.BooleanField()
    expected = serializers.IntegerField()
    found = serializers.IntegerField()
    detail = serializers.CharField()


class ConsistencySerializer(serializers.Serializer):
    ok = serializers.BooleanField()
    checks = CheckSerializer(many=True)
    counts = serializers.DictField(child=serializers.IntegerField())


class RunNameSerializer(serializers.Serializer):
    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    web_url = serializers.CharField()


class LeaseSerializer(serializers.Serializer):
    id = serializers.IntegerField()
    run_no = serializers.IntegerField()
    run = RunNameSerializer(allow_null=True)
    use = serializers.ChoiceField(["engine", "trainer"])
    state = serializers.ChoiceField(["held", "releasing"])
    granted_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    child_up = serializers.BooleanField()
    phase = serializers.CharField(allow_blank=True)
    policy = serializers.CharField(allow_blank=True)
    phase_ended_at = serializers.FloatField(allow_null=True)


class DeviceSerializer(serializers.Serializer):
    id = serializers.CharField()
    node = serializers.CharField()
    kind = serializers.CharField()
    ordinal = serializers.IntegerField()
    name = serializers.CharField(allow_blank=True)
    memory_bytes = serializers.IntegerField()
    pool = serializers.CharField()
    state = serializers.ChoiceField(["ready", "cordoned", "lost"])
    node_state = serializers.CharField()
    free = serializers.BooleanField()
    lease = LeaseSerializer(allow_null=True)
    url = serializers.CharField()
    web_url = serializers.CharField()


class DeviceMoveSerializer(StrictSerializer):
    pool = serializers.CharField(max_length=64)
