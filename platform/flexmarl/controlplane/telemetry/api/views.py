"""Trajectories, timelines and feeds of a run, and devices, over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.api.conditional import etag, if_match
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.api.serializers import listing
from flexmarl.controlplane.common.api.views import ApiView
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import actions as inventory_actions
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.inventory.api.serializers import HostActionSerializer
from flexmarl.controlplane.inventory.api.views import RULES
from flexmarl.controlplane.runs.queries import find_run
from flexmarl.controlplane.telemetry import queries
from flexmarl.controlplane.telemetry.api import serializers as shapes
from flexmarl.controlplane.telemetry.live import feed


class EventsView(ApiView):
    lists = True
    scopes = {"GET": Scope.RUNS_READ}
    parameters = (
        Parameter("after", "Sequence number to continue after.", "integer"),
        Parameter("limit", f"Events per answer, 1 to {feed.MAX_LIMIT}.", "integer"),
        Parameter("kind", "Kind of event; may be repeated.", many=True),
        Parameter("expand", "`body` adds the events as the orchestrator got them.", choices=("body",)),
    )

    @extend_schema(operation_id="runs_events", responses=shapes.EventsSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Read the run's log behind a sequence number."""
        limit = int(_bounded(self.values, "limit", feed.DEFAULT_LIMIT, 1, feed.MAX_LIMIT))
        after = self.values.get("after", 0)
        bodies = self.values.get("expand") == "body"
        return Response(
            queries.events(find_run(actor_of(request), run_id), after, limit, self.values.get("kind"), bodies)
        )


STATES = ("ready", "cordoned", "draining", "drained", "lost")


class DevicesView(ApiView):
    lists = True
    scopes = {"GET": Scope.CLUSTER_READ}
    parameters = (
        Parameter("pool", "Pool; may be repeated.", many=True),
        Parameter("state", "State; may be repeated.", choices=STATES, many=True),
        Parameter("free", "Free for a lease now, or not.", "boolean"),
    )

    @extend_schema(operation_id="devices_list", responses=listing(shapes.DeviceSerializer))
    def get(self, request: Request) -> Response:
        """List devices with the runs that hold them."""
        values = self.values
        rows = [
            row
            for row in queries.devices(actor=actor_of(request))
            if row["pool"] in values.get("pool", [row["pool"]])
            and row["state"] in values.get("state", [row["state"]])
            and row["free"] == values.get("free", row["free"])
        ]
        return Response(_all(rows))


class DeviceView(ApiView):
    scopes = {"GET": Scope.CLUSTER_READ, "PATCH": Scope.CLUSTER_ADMIN}
    versioned = {"PATCH": True}

    @extend_schema(operation_id="devices_read", responses=shapes.DeviceSerializer)
    def get(self, request: Request, device_id: str) -> Response:
        """Read a device."""
        return _device_response(request, device_id)

    @extend_schema(
        operation_id="devices_update", request=shapes.DeviceMoveSerializer, responses=shapes.DeviceSerializer
    )
    def patch(self, request: Request, device_id: str) -> Response:
        """Put a device into another pool (a lease it holds goes on), or change its note. Needs If-Match."""
        body = shapes.DeviceMoveSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        if len(given) != 1:
            raise ValidationProblem("Send either pool or note.")
        if "pool" in given:
            inventory_actions.move_device(actor_of(request), device_id, if_match(request, required=True), given["pool"])
        else:
            inventory_actions.set_note(
                actor_of(request), "device", device_id, if_match(request, required=True), given["note"]
            )
        return _device_response(request, device_id)


class DeviceActionView(ApiView):
    scopes = {"POST": Scope.CLUSTER_ADMIN}
    versioned = {"POST": True}

    @extend_schema(operation_id="devices_act", request=HostActionSerializer, responses=shapes.DeviceSerializer)
    def post(self, request: Request, device_id: str, action: str) -> Response:
        """Cordon a device (no new leases; what runs goes on), or enable it again. Needs If-Match."""
        body = HostActionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        RULES[action](
            actor_of(request), "device", device_id, if_match(request, required=True), body.validated_data.get("note")
        )
        return _device_response(request, device_id)


def _device_response(request: Request, device_id: str) -> Response:
    row = inventory.one(queries.devices([device_id], actor=actor_of(request)), "device", device_id)
    return Response(row, headers={"ETag": etag(row["version"])})


def _all(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"results": rows, "next": None, "previous": None, "count": len(rows)}


def _bounded(values: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value: float = values.get(name, default)
    if not low <= value <= high:
        raise _refuse(name, "out_of_range", f"{name}={value} is not between {low:g} and {high:g}.", "")
    return value


def _refuse(name: str, code: str, detail: str, hint: str) -> ValidationProblem:
    return ValidationProblem(detail, errors=[FieldError(name, code, detail, hint, "query")])
