"""Requests of hosts to join, over REST: read, approved and rejected by administrators."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.api.views import read
from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import StrictSerializer, listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import node_join_rows, node_joins
from flexmarl.controlplane.inventory.models import NodeJoin

STATES = [str(state) for state in NodeJoin.State]


class JoiningDeviceSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="cpu or cuda.")
    name = serializers.CharField(allow_blank=True)
    memory_bytes = serializers.IntegerField()


class NodeJoinSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    node = serializers.CharField(help_text="Name that the host asked for, or that it was given with the approval.")
    pool = serializers.CharField(help_text="Pool of its devices, of the same kind.")
    host_name = serializers.CharField(
        allow_blank=True, help_text="Like all that follows up to `devices`: as told by it."
    )
    agent_version = serializers.CharField(allow_blank=True)
    devices = JoiningDeviceSerializer(many=True)
    address = serializers.CharField(allow_blank=True, help_text="Address that the request came from.")
    code = serializers.CharField(help_text="Compare it with the one that the host shows.")
    state = serializers.ChoiceField(STATES)
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True, help_text="Until then it waits; null when it was decided.")
    decided_by = serializers.CharField(allow_null=True)
    decided_at = serializers.DateTimeField(allow_null=True)
    version = serializers.IntegerField()
    url = serializers.CharField()
    web_url = serializers.CharField()


class ApprovalSerializer(StrictSerializer):
    node = serializers.CharField(max_length=64, required=False, help_text="Default: the name that was asked for.")
    pool = serializers.CharField(max_length=64, required=False, help_text="Default: the pool that was asked for.")


FILTERS = (Parameter("state", "Current state.", choices=tuple(STATES), lookup="state"),)


class NodeJoinsView(ListView):
    scopes = {"GET": Scope.CLUSTER_ADMIN}
    parameters = FILTERS

    def query(self, request: Request) -> QuerySet[NodeJoin]:
        return node_join_rows.node_joins(actor_of(request))

    def row_maker(self, request: Request) -> Callable[[NodeJoin], dict[str, Any]]:
        return node_join_rows.join_row

    @extend_schema(operation_id="node_joins_list", responses=listing(NodeJoinSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List hosts that ask to join, and those that were approved or rejected within a day."""
        return super().get(request, *args, **kwargs)


class NodeJoinView(ApiView):
    scopes = {"GET": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="node_joins_read", responses=NodeJoinSerializer)
    def get(self, request: Request, join_id: UUID) -> Response:
        """Read the request of a host to join."""
        return _answer(node_join_rows.node_join_of(actor_of(request), join_id))


class NodeJoinApprovalView(ApiView):
    scopes = {"POST": Scope.CLUSTER_ADMIN}
    versioned = {"POST": False}

    @extend_schema(operation_id="node_joins_approve", request=ApprovalSerializer, responses=NodeJoinSerializer)
    def post(self, request: Request, join_id: UUID) -> Response:
        """Let a host in, after comparing its code: the token that it made becomes its node token. Honours If-Match."""
        names = read(ApprovalSerializer, request)
        return _answer(node_joins.approve(actor_of(request), join_id, **names, precondition=if_match(request)))


class NodeJoinRejectionView(ApiView):
    scopes = {"POST": Scope.CLUSTER_ADMIN}
    versioned = {"POST": False}

    @extend_schema(operation_id="node_joins_reject", request=None, responses=NodeJoinSerializer)
    def post(self, request: Request, join_id: UUID) -> Response:
        """Turn a host away. It hears of that within seconds. Honours If-Match."""
        return _answer(node_joins.reject(actor_of(request), join_id, precondition=if_match(request)))


def _answer(join: NodeJoin) -> Response:
    return Response(node_join_rows.join_row(join), headers={"ETag": etag(join.version)})
