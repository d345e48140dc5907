"""The queue, places in it, and drains with their previews, over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import actions as inventory_actions
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.inventory.actions import DrainOrder
from flexmarl.controlplane.runs import drains, queries, queue, queue_actions
from flexmarl.controlplane.runs.api import queue_shapes as shapes
from flexmarl.controlplane.runs.api.serializers import RunDetailSerializer
from flexmarl.store.control.cordons import DrainMode, Kind


class QueueView(ApiView):
    lists = True
    scopes = {"GET": Scope.CLUSTER_READ}
    parameters = (
        Parameter("pool", "Pool that is waited for; may be repeated.", many=True),
        Parameter("project", "Project of the run."),
    )

    @extend_schema(operation_id="queue_list", responses=listing(shapes.QueueEntrySerializer))
    def get(self, request: Request) -> Response:
        """List who waits for devices, in the order of service, with what is not met."""
        pools, project = set(self.values.get("pool", ())), self.values.get("project")
        rows = [
            row
            for row in queue.queue(actor_of(request))
            if (not pools or pools & {wish["pool"] for wish in row["pools"]})
            and (project is None or row["project"] == project)
        ]
        return Response({"results": rows, "next": None, "previous": None, "count": len(rows)})


class PriorityView(ApiView):
    scopes = {"POST": Scope.RUNS_ACT_ANY}

    @extend_schema(
        operation_id="runs_set_priority", request=shapes.PrioritySerializer, responses=shapes.PlaceSerializer
    )
    def post(self, request: Request, run_id: str) -> Response:
        """Say how soon a run is served, 0 to 100, larger first. For operators."""
        body = shapes.PrioritySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actor = actor_of(request)
        run = queries.find_run(actor, run_id)
        queue_actions.set_priority(actor, run, body.validated_data["priority"])
        return Response({"priority": body.validated_data["priority"], "place": queue.queue_of(actor, run)})


class MovePoolView(ApiView):
    scopes = {"POST": Scope.RUNS_ACT}

    @extend_schema(operation_id="runs_move_pool", request=shapes.MovePoolSerializer, responses=RunDetailSerializer)
    def post(self, request: Request, run_id: str) -> Response:
        """Let a draft or queued run ask for its devices in other pools."""
        body = shapes.MovePoolSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        actor, given = actor_of(request), body.validated_data
        run = queries.find_run(actor, run_id)
        moved = queue_actions.move_pool(actor, run, given["pool"], given["training_pool"] or given["pool"])
        return Response(queries.run_detail(moved), headers={"ETag": etag(moved.version)})


class NodeDrainView(ApiView):
    scopes = {"POST": Scope.CLUSTER_READ}
    versioned = {"POST": False}
    """Looking needs no more than reading the cluster; the action asks for more."""

    @extend_schema(
        operation_id="nodes_drain",
        request=shapes.DrainSerializer,
        responses={200: shapes.DrainPreviewSerializer, 202: shapes.DrainProgressSerializer},
    )
    def post(self, request: Request, name: str) -> Response:
        """Empty a node, or with `dry_run` say what that would do. Needs If-Match unless it is a dry run."""
        return _drain(request, "node", name)


class DeviceDrainView(ApiView):
    scopes = {"POST": Scope.CLUSTER_READ}
    versioned = {"POST": False}

    @extend_schema(
        operation_id="devices_drain",
        request=shapes.DrainSerializer,
        responses={200: shapes.DrainPreviewSerializer, 202: shapes.DrainProgressSerializer},
    )
    def post(self, request: Request, device_id: str) -> Response:
        """Empty a device, or with `dry_run` say what that would do. Needs If-Match unless it is a dry run."""
        return _drain(request, "device", device_id)


def _drain(request: Request, kind: Kind, key: str) -> Response:
    body = shapes.DrainSerializer(data=request.data)
    body.is_valid(raise_exception=True)
    given, actor = body.validated_data, actor_of(request)
    mode = DrainMode(given["mode"])
    if given["dry_run"]:
        shown = drains.preview(actor, kind, key, mode)
        return Response(shown, headers={"ETag": etag(shown["version"])})
    order = DrainOrder(mode, given.get("deadline"))
    inventory_actions.drain(actor, kind, key, if_match(request, required=True), order, given.get("note"))
    row = _row(kind, key)
    return Response(
        {"kind": kind, "name": key, "state": row["state"], "version": row["version"], "drain": row["drain"]},
        status=202,
        headers={"Location": row["url"], "ETag": etag(row["version"])},
    )


def _row(kind: Kind, key: str) -> dict[str, Any]:
    return inventory.one(inventory.nodes([key]) if kind == "node" else inventory.devices([key]), kind, key)
