"""Shapes of series, their points, and batches of points."""

from typing import Any

from rest_framework import serializers

from flexmarl.controlplane.common.api.serializers import StrictSerializer
from flexmarl.controlplane.telemetry.charts import ingest
from flexmarl.controlplane.telemetry.charts.series import AXES, DEFAULT_POINTS, MAX_POINTS, MAX_RUNS


class SeriesSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    agent = serializers.CharField(allow_blank=True, help_text="Role or policy; empty for the team.")
    stat = serializers.CharField()
    unit = serializers.CharField(allow_blank=True)
    title = serializers.CharField()
    meaning = serializers.CharField(allow_blank=True)
    first = serializers.FloatField()
    last = serializers.FloatField()
    min = serializers.FloatField()
    max = serializers.FloatField()
    first_step = serializers.IntegerField()
    last_step = serializers.IntegerField()
    points = serializers.IntegerField(help_text="Finite values.")
    x = serializers.ListField(child=serializers.ChoiceField(AXES), help_text="Axes it can be drawn on.")


class BucketSerializer(serializers.Serializer[Any]):
    x_from = serializers.FloatField()
    x_to = serializers.FloatField()
    min = serializers.FloatField()
    max = serializers.FloatField()
    last = serializers.FloatField()
    points = serializers.IntegerField()


class PointsSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    agent = serializers.CharField(allow_blank=True)
    stat = serializers.CharField()
    x = serializers.ListField(child=serializers.FloatField())
    y = serializers.ListField(child=serializers.FloatField())
    buckets = BucketSerializer(many=True, required=False, help_text="Instead of points, when asked for.")


class SeriesDataSerializer(serializers.Serializer[Any]):
    series = PointsSerializer(many=True)
    x = serializers.ChoiceField(AXES)
    seq = serializers.IntegerField()


class CompareSerializer(StrictSerializer):
    runs = serializers.ListField(
        child=serializers.CharField(max_length=64),
        min_length=1,
        max_length=MAX_RUNS,
        help_text="Ids or keys of runs.",
    )
    names = serializers.ListField(child=serializers.CharField(max_length=200), min_length=1, max_length=50)
    agent = serializers.CharField(allow_null=True, allow_blank=True, default=None, max_length=64)
    stat = serializers.CharField(allow_null=True, default=None, max_length=16)
    x = serializers.ChoiceField(AXES, default="step")
    to = serializers.FloatField(allow_null=True, default=None)
    max_points = serializers.IntegerField(min_value=4, max_value=MAX_POINTS, default=DEFAULT_POINTS)
    buckets = serializers.BooleanField(default=False)

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Add `from`, which is no name in Python."""
        return {**super().get_fields(), "from": serializers.FloatField(allow_null=True, default=None)}


class RunPointsSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    name = serializers.CharField()
    seq = serializers.IntegerField()
    series = PointsSerializer(many=True)


class CompareDataSerializer(serializers.Serializer[Any]):
    runs = RunPointsSerializer(many=True)
    x = serializers.ChoiceField(AXES)


class PointLineSerializer(serializers.Serializer[Any]):
    """One line of a batch; checked by `telemetry.ingest`."""

    name = serializers.CharField(help_text="Begins with `user/`.")
    agent = serializers.CharField(required=False, help_text="A role or policy of the run.")
    stat = serializers.ChoiceField(ingest.STATS, required=False)
    step = serializers.IntegerField(min_value=0)
    value = serializers.FloatField()
    at = serializers.DateTimeField(required=False, help_text="The moment of writing when absent.")
    samples = serializers.IntegerField(required=False, min_value=0)


class StoredBatchSerializer(serializers.Serializer[Any]):
    lines = serializers.IntegerField()
    added = serializers.IntegerField()
    replaced = serializers.IntegerField()
