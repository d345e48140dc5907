"""Devices: one card each, with the run that holds it, what it does and how busy it was."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from flexmarl.controlplane.accounts.queries import actor_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.runs import queries as runs
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.views.base import is_part, page, show

WINDOW = 300


@page(Scope.CLUSTER_READ)
def cluster(request: HttpRequest) -> HttpResponse:
    """Show nodes with their devices, sick ones first."""
    devices = telemetry.devices(actor=actor_of(request))
    use = shares(actor_of(request), devices)
    for device in devices:
        device["share"] = use.get(device["lease"]["id"]) if device["lease"] else None
        device["out"] = device["state"] != "ready" or device["node_state"] not in ("ready",)
    nodes = inventory.nodes()
    for node in nodes:
        node["rows"] = [device for device in devices if device["node"] == node["name"]]
    nodes.sort(key=lambda node: (node["state"] == "ready", node["name"]))
    context = {
        "nav": "cluster",
        "nodes": nodes,
        "total": len(devices),
        "leased": sum(device["lease"] is not None for device in devices),
        "free": sum(device["free"] for device in devices),
        "out": sum(device["out"] for device in devices),
    }
    return show(request, "webui/parts/cluster.html" if is_part(request) else "webui/cluster.html", context)


def shares(actor: Actor, devices: list[dict[str, Any]]) -> dict[int, float]:
    """Busy share of each lease of runs the caller may read over the last minutes, read once per run."""
    held = {device["lease"]["run"]["key"] for device in devices if device["lease"] and device["lease"].get("run")}
    found: dict[int, float] = {}
    for run in runs.runs(actor).filter(key__in=held):
        for row in telemetry.utilisation(run, WINDOW):
            found[row["lease_id"]] = row["busy_share"]
    return found
