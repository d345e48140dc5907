"""Pools, quotas and nodes over REST. Devices are read with the runs that hold them: see telemetry; drains: see runs."""

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView, ListView
from flexmarl.controlplane.common.models import AuditEntry
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import actions, changes, pool_actions, queries
from flexmarl.controlplane.inventory.api import serializers as shapes

RULES = {"cordon": actions.cordon, "enable": actions.enable}


class PoolsView(ApiView):
    lists = True
    scopes = {"GET": Scope.CLUSTER_READ, "POST": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="pools_list", responses=listing(shapes.PoolSerializer))
    def get(self, request: Request) -> Response:
        """List pools with counts of their devices, bindings and quotas."""
        return _all(queries.pools())

    @extend_schema(
        operation_id="pools_create", request=shapes.NewPoolSerializer, responses={201: shapes.PoolSerializer}
    )
    def post(self, request: Request) -> Response:
        """Describe a pool."""
        body = shapes.NewPoolSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        pool = pool_actions.create_pool(actor_of(request), **body.validated_data)
        return _pool_response(pool.name, status=201)


class PoolView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ, "PATCH": Scope.CLUSTER_ADMIN, "DELETE": Scope.CLUSTER_ADMIN}
    versioned = {"PATCH": True, "DELETE": True}

    @extend_schema(operation_id="pools_read", responses=shapes.PoolSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read a pool."""
        return _pool_response(name)

    @extend_schema(operation_id="pools_update", request=shapes.PoolMembersSerializer, responses=shapes.PoolSerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Change a pool's description, note, default mark or bindings. Needs If-Match."""
        body = shapes.PoolMembersSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        pool_actions.update_pool(actor_of(request), name, if_match(request, required=True), body.validated_data)
        return _pool_response(name)

    @extend_schema(operation_id="pools_delete", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Delete a pool without devices. Needs If-Match."""
        pool_actions.delete_pool(actor_of(request), name, if_match(request, required=True))
        return Response(status=204)


class QuotasView(ApiView):
    lists = True
    scopes = {"GET": Scope.CLUSTER_READ}
    parameters = (Parameter("pool", "Name of the pool."), Parameter("project", "Name of the project."))

    @extend_schema(operation_id="quotas_list", responses=listing(shapes.QuotaSerializer))
    def get(self, request: Request) -> Response:
        """List what projects may hold of pools at once, and what they hold."""
        asked = {name: self.values[name] for name in ("pool", "project") if name in self.values}
        rows = [quota for pool in queries.pools() for quota in pool["quotas"]]
        return _all([row for row in rows if all(row[name] == value for name, value in asked.items())])


class QuotaView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ, "PUT": Scope.CLUSTER_ADMIN, "DELETE": Scope.CLUSTER_ADMIN}
    versioned = {"PUT": True, "DELETE": True}

    @extend_schema(operation_id="quotas_read", responses=shapes.QuotaSerializer)
    def get(self, request: Request, name: str, project: str) -> Response:
        """Read one quota."""
        return _quota_response(name, project)

    @extend_schema(operation_id="quotas_set", request=shapes.QuotaChangeSerializer, responses=shapes.QuotaSerializer)
    def put(self, request: Request, name: str, project: str) -> Response:
        """Limit what a project holds of a pool at once. Needs If-Match, `W/"0"` where there is no quota yet."""
        body = shapes.QuotaChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        devices = body.validated_data["devices"]
        pool_actions.set_quota(actor_of(request), name, project, if_match(request, required=True), devices)
        return _quota_response(name, project)

    @extend_schema(operation_id="quotas_delete", responses={204: None})
    def delete(self, request: Request, name: str, project: str) -> Response:
        """Lift a limit. Needs If-Match."""
        pool_actions.set_quota(actor_of(request), name, project, if_match(request, required=True), None)
        return Response(status=204)


class ProjectPoolView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ, "PUT": Scope.CLUSTER_ADMIN}

    @extend_schema(operation_id="projects_default_pool", responses=shapes.ProjectPoolSerializer)
    def get(self, request: Request, project: str) -> Response:
        """Name the pool that a project's runs take when they name none."""
        actor_of(request).require(Scope.RUNS_READ, project)
        return Response({"pool": queries.default_pool(project)})

    @extend_schema(
        operation_id="projects_set_default_pool",
        request=shapes.ProjectPoolSerializer,
        responses=shapes.ProjectPoolSerializer,
    )
    def put(self, request: Request, project: str) -> Response:
        """Choose the pool that a project's runs take when they name none."""
        body = shapes.ProjectPoolSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        pool_actions.set_project_pool(actor_of(request), project, body.validated_data["pool"])
        return Response({"pool": queries.default_pool(project)})


class NodesView(ApiView):
    lists = True
    scopes = {"GET": Scope.CLUSTER_READ}

    @extend_schema(operation_id="nodes_list", responses=listing(shapes.NodeSerializer))
    def get(self, request: Request) -> Response:
        """List nodes."""
        return _all(queries.nodes())


class NodeView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ, "PATCH": Scope.CLUSTER_ADMIN}
    versioned = {"PATCH": True}

    @extend_schema(operation_id="nodes_read", responses=shapes.NodeSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read a node."""
        return _node_response(name)

    @extend_schema(operation_id="nodes_update", request=shapes.NodeChangeSerializer, responses=shapes.NodeSerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Change a node's maintenance note. Needs If-Match."""
        body = shapes.NodeChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actions.set_note(actor_of(request), "node", name, if_match(request, required=True), body.validated_data["note"])
        return _node_response(name)


class NodeActionView(ApiView):
    scopes = {"POST": Scope.CLUSTER_ADMIN}
    versioned = {"POST": True}

    @extend_schema(operation_id="nodes_act", request=shapes.HostActionSerializer, responses=shapes.NodeSerializer)
    def post(self, request: Request, name: str, action: str) -> Response:
        """Cordon a node (no new leases; what runs goes on), or enable it again. Needs If-Match."""
        body = shapes.HostActionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        RULES[action](
            actor_of(request), "node", name, if_match(request, required=True), body.validated_data.get("note")
        )
        return _node_response(name)


class ChangesView(ListView):
    """What administrators changed, newest first."""

    scopes = {"GET": Scope.CLUSTER_READ}
    parameters = (
        Parameter("kind", "Kind of object; may be repeated.", choices=changes.KINDS, lookup="target_kind", many=True),
        Parameter("name", "Name of the object.", lookup="target_id"),
    )
    orderings = {"-at": "-id", "at": "id"}

    def query(self, request: Request) -> QuerySet[AuditEntry]:
        return changes.entries()

    def row_maker(self, request: Request) -> Callable[[AuditEntry], dict[str, Any]]:
        return changes.row

    @extend_schema(operation_id="changes_list", responses=listing(shapes.ChangeSerializer))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List changes of pools, quotas, nodes and devices with what was before and after."""
        return super().get(request, *args, **kwargs)


def _all(rows: list[dict[str, Any]]) -> Response:
    return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


def _pool_response(name: str, status: int = 200) -> Response:
    row = queries.one([pool for pool in queries.pools() if pool["name"] == name], "pool", name)
    headers = {"ETag": etag(row["version"])} | ({"Location": row["url"]} if status == 201 else {})
    return Response(row, status=status, headers=headers)


def _quota_response(name: str, project: str) -> Response:
    row = queries.quota_of(name, project)
    return Response(row, headers={"ETag": etag(row["version"])})


def _node_response(name: str) -> Response:
    row = queries.one(queries.nodes([name]), "node", name)
    return Response(row, headers={"ETag": etag(row["version"])})
