"""Pools and nodes over REST. Devices are read with the runs that hold them: see telemetry."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, check_if_match, etag
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import actions, queries
from flexmarl.controlplane.inventory.api.serializers import (
    NewPoolSerializer,
    NodeSerializer,
    PoolChangeSerializer,
    PoolSerializer,
)
from flexmarl.controlplane.inventory.models import Pool

CORDON = {"cordon": True, "uncordon": False}


class PoolsView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ, "POST": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="pools_list", responses=listing(PoolSerializer))
    def get(self, request: Request) -> Response:
        """List pools with counts of their devices."""
        rows = queries.pools()
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})

    @extend_schema(operation_id="pools_create", request=NewPoolSerializer, responses={201: PoolSerializer})
    def post(self, request: Request) -> Response:
        """Describe a pool."""
        body = NewPoolSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        pool = actions.create_pool(actor_of(request), **body.validated_data)
        return _pool_response(pool.name, status=201)


class PoolView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ, "PATCH": Scope.CLUSTER_ADMIN, "DELETE": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="pools_read", responses=PoolSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read a pool."""
        return _pool_response(name)

    @extend_schema(operation_id="pools_update", request=PoolChangeSerializer, responses=PoolSerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Change a pool's description. Needs If-Match."""
        body = PoolChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        pool = _described(name)
        check_if_match(request, pool.version, required=True)
        actions.update_pool(actor_of(request), pool, body.validated_data["description"])
        return _pool_response(name)

    @extend_schema(operation_id="pools_delete", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Delete a pool without devices. Needs If-Match."""
        pool = _described(name)
        check_if_match(request, pool.version, required=True)
        actions.delete_pool(actor_of(request), pool)
        return Response(status=204)


class NodesView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ}

    @extend_schema(operation_id="nodes_list", responses=listing(NodeSerializer))
    def get(self, request: Request) -> Response:
        """List nodes."""
        rows = queries.nodes()
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


class NodeView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ}

    @extend_schema(operation_id="nodes_read", responses=NodeSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read a node."""
        return Response(queries.one(queries.nodes(name), "node", name))


class NodeActionView(ApiView):
    scopes = {"POST": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="nodes_act", request=None, responses=NodeSerializer)
    def post(self, request: Request, name: str, action: str) -> Response:
        """Cordon a node (no new leases; what runs goes on) or let it work again."""
        actions.cordon_node(actor_of(request), name, CORDON[action])
        return Response(queries.one(queries.nodes(name), "node", name))


def _pool_response(name: str, status: int = 200) -> Response:
    row = queries.one([pool for pool in queries.pools() if pool["name"] == name], "pool", name)
    headers = {"ETag": etag(row["version"])} | ({"Location": row["url"]} if status == 201 else {})
    return Response(row, status=status, headers=headers)


def _described(name: str) -> Pool:
    pool = Pool.objects.filter(name=name).first()
    if pool is None:
        raise NotFound(f"Nobody has described a pool {name}.")
    return pool
