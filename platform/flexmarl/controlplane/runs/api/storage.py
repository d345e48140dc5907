"""What takes the room, over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.runs import storage
from flexmarl.store.reads.storage import KINDS


class StoragePlaceSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(help_text="A folder of the home, `database`, `wal` or `free`.")
    bytes = serializers.IntegerField()


class StorageKindSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    rows = serializers.IntegerField(help_text="Rows, or files.")
    bytes = serializers.IntegerField()


class StorageProjectSerializer(serializers.Serializer[Any]):
    project = serializers.CharField(allow_blank=True, help_text="Empty: of runs that are being deleted.")
    runs = serializers.IntegerField()
    bytes = serializers.IntegerField()


class StoredRunSerializer(serializers.Serializer[Any]):
    no = serializers.IntegerField()
    id = serializers.UUIDField(allow_null=True)
    key = serializers.CharField(allow_blank=True)
    project = serializers.CharField(allow_blank=True)
    status = serializers.CharField(allow_blank=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    bytes = serializers.IntegerField()


class StorageRunSerializer(StoredRunSerializer):
    kinds = serializers.DictField(child=serializers.IntegerField(), help_text=f"Bytes of each of {', '.join(KINDS)}.")


class StorageNextSerializer(StoredRunSerializer):
    reason = serializers.CharField(help_text="`age` or `size`.")
    due_at = serializers.DateTimeField(allow_null=True, help_text="Null: at the next pass.")


class StorageLimitSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    kinds = serializers.ListField(child=serializers.CharField())
    days = serializers.IntegerField(help_text="Days after a run's end; 0: no limit by age.")
    bytes = serializers.IntegerField(help_text="0: no limit by size.")
    used_bytes = serializers.IntegerField()
    settings = serializers.ListField(child=serializers.CharField(), help_text="Variables that set it.")
    next = StorageNextSerializer(many=True, help_text="Whose data goes next, in this order.")


class StorageRemovedSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(allow_blank=True)
    kind = serializers.CharField()
    amount = serializers.IntegerField()
    kept = serializers.CharField(allow_blank=True, help_text="Why it stayed, if it did.")


class StorageDeletionSerializer(serializers.Serializer[Any]):
    key = serializers.CharField()
    project = serializers.CharField()
    asked_at = serializers.DateTimeField()
    nodes = serializers.ListField(child=serializers.CharField(), help_text="Nodes whose files are not removed yet.")


class StorageSerializer(serializers.Serializer[Any]):
    measured_at = serializers.DateTimeField(allow_null=True, help_text="Null: before the first pass.")
    seconds = serializers.FloatField(allow_null=True)
    host = serializers.CharField(allow_blank=True)
    places = StoragePlaceSerializer(many=True)
    kinds = StorageKindSerializer(many=True)
    projects = StorageProjectSerializer(many=True)
    runs = StorageRunSerializer(many=True, help_text="The largest.")
    limits = StorageLimitSerializer(many=True)
    removed = StorageRemovedSerializer(many=True, help_text="By the last pass.")
    deletions = StorageDeletionSerializer(many=True, help_text="Deletions of runs that are under way.")


class StorageView(ApiView):
    scopes = {"GET": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="storage_read", responses=StorageSerializer)
    def get(self, request: Request) -> Response:
        """Read who takes how much room, which limits hold and what they let go next."""
        return Response(storage.report())
