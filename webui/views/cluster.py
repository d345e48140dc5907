"""Pools and nodes: who holds which device, how busy it is, and what a drain would do before it is pressed.

The view (nodes or devices), a pool, and what stands in the rail are in the URL.
"""

from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.controlplane.accounts.queries import actor_of, project_names
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import changes, provided
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.inventory.joining import joining
from flexmarl.controlplane.inventory.processes import processes
from flexmarl.controlplane.runs import drains, queue
from flexmarl.controlplane.runs.pool_look import PoolLook
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures.pools import device_marks, heat_rows
from webui.views import provided_words
from webui.views.base import is_part, page, show

VIEWS = (("nodes", "Nodes"), ("devices", "Devices"))
NEW_POOL = "new"
"""In the address: not the name of a pool, but the form for a new one."""
LOG_LINES = 6


class ClusterRows(NamedTuple):
    """What the page has read once, for its lists and its rail."""

    nodes: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    pools: list[dict[str, Any]]
    seen: PoolLook


@page(Scope.CLUSTER_READ)
def cluster(request: HttpRequest) -> HttpResponse:
    """Show pools, then nodes with their devices, sick ones first; in the rail what the URL asks for."""
    actor = actor_of(request)
    devices, seen, every = marked_devices(actor), queue.seen_now(), inventory.nodes()
    pools = inventory.pools(devices, seen.stored)
    pool = request.GET.get("pool", "")
    nodes = _nodes(every, devices, pool)
    view = "devices" if request.GET.get("view") == "devices" else "nodes"
    context = {
        "nav": "cluster",
        "view": view,
        "views": [{"word": word, "on": key == view, "url": _with(request, view=key)} for key, word in VIEWS],
        "pools": _pools(pools, devices, queue.waiting_by_pool(seen)),
        "pool": pool,
        "no_pool_url": _with(request, pool=""),
        "nodes": nodes,
        "devices": [device for device in devices if not pool or device["pool"] == pool],
        "total": len(devices),
        "leased": sum(device["lease"] is not None for device in devices),
        "out": sum(device["out"] for device in devices),
        "admin": actor.may(Scope.CLUSTER_ADMIN),
        "log": changes.latest(LOG_LINES),
        "processes": processes(),
        **_hosts(request, pool, pools),
        "here": request.get_full_path(),
        "joining": joining(),
        **_rail(request, actor, ClusterRows(every, devices, pools, seen)),
    }
    return show(request, "webui/parts/cluster.html" if is_part(request) else "webui/cluster.html", context)


def marked_devices(actor: Actor) -> list[dict[str, Any]]:
    """All devices with what their cards show: the hue of their agent, use, memory, and whether they are out."""
    devices = telemetry.devices(actor=actor)
    busy = telemetry.busy_devices()
    for device in devices:
        device["use"] = device["load"].get("use", busy.get(device["id"]))
        used, size = device["load"].get("memory_bytes"), device["memory_bytes"]
        device["memory_share"] = used / size if used and size else None
        device["out"] = device["state"] != "ready" or device["node_state"] != "ready"
        device["marks"] = device_marks(device["lease"])
    return devices


def _nodes(nodes: list[dict[str, Any]], devices: list[dict[str, Any]], pool: str) -> list[dict[str, Any]]:
    for node in nodes:
        node["rows"] = [d for d in devices if d["node"] == node["name"] and (not pool or d["pool"] == pool)]
        node["pools"] = sorted({device["pool"] for device in node["rows"]})
        node["out"] = sum(device["state"] != "ready" for device in node["rows"])
    shown = [node for node in nodes if node["rows"] or not pool]
    return sorted(shown, key=lambda node: (node["state"] == "ready" and not node["out"], node["name"]))


def _pools(found: list[dict[str, Any]], devices: list[dict[str, Any]], waiting: dict[str, int]) -> list[dict[str, Any]]:
    weeks = telemetry.busy_week(timezone.localtime(), {pool["name"]: pool["devices"] for pool in found})
    for pool in found:
        own = [device for device in devices if device["pool"] == pool["name"]]
        held = [device["use"] for device in own if device["lease"] and device["use"] is not None]
        pool["rows"] = own
        pool["nodes"] = len({device["node"] for device in own})
        pool["kinds"] = sorted({device["kind"] for device in own})
        pool["busy"] = sum(held) / len(held) if held else None
        pool["waiting"] = waiting.get(pool["name"], 0)
        pool["out"] = sum(device["out"] for device in own)
        pool["heat"] = heat_rows(weeks.get(pool["name"]))
    return found


def _hosts(request: HttpRequest, pool: str, pools: list[dict[str, Any]]) -> dict[str, Any]:
    """What stands of the jobs of pools that grow: a line on each card, and the table of the pool that is chosen."""
    growing = {one["name"]: one["provider"] for one in pools if one["provider"]["type"] != "static"}
    if not growing:
        return {}
    living = provided.living()
    for one in pools:
        if one["name"] in growing:
            own = living.get(one["name"], [])
            one["growth"] = provided_words.summary(own, growing[one["name"]])
            one["trouble"] = next(iter(provided_words.troubles(own)), None)
    if pool not in growing:
        return {}
    jobs = provided_words.with_icons(provided.jobs(pool))
    return {
        "growing": growing[pool],
        "provider_name": provided_words.NAMES[growing[pool]["type"]],
        "jobs": jobs,
        "troubles": provided_words.troubles(jobs),
        "provides": provided.is_provided(),
        "try_url": _with(request, **{"try": pool}),
    }


def _rail(request: HttpRequest, actor: Actor, read: ClusterRows) -> dict[str, Any]:
    """What stands beside the list: a drain before it is pressed, a pool's rules, or how to add a node."""
    asked = request.GET
    if asked.get("drain") or asked.get("drain-device"):
        kind: drains.Kind = "node" if asked.get("drain") else "device"
        return {
            "rail": "drain",
            "drain": _drain(request, actor, kind, asked.get("drain") or asked["drain-device"], read),
        }
    if asked.get("edit"):
        name = asked["edit"]
        found = None if name == NEW_POOL else inventory.one([p for p in read.pools if p["name"] == name], "pool", name)
        return {
            "rail": "pool",
            "editing": found,
            "projects_known": project_names(actor),
            "option_groups": provided_words.option_groups(found["provider"] if found else {}),
            "option_kinds": provided_words.KINDS,
            "close_url": _closed(request),
        }
    if asked.get("try") and actor.may(Scope.CLUSTER_ADMIN):
        found = inventory.one([p for p in read.pools if p["name"] == asked["try"]], "pool", asked["try"])
        shown = None if found["provider"]["type"] == "static" else provided.submission(found["name"])
        return {"rail": "try", "trying": found["name"], "submission": shown, "close_url": _closed(request)}
    if asked.get("add") == "node":
        return {"rail": "add", "close_url": _closed(request), **_tokens(request, actor)}
    return {"rail": "", "close_url": _closed(request)}


def _tokens(request: HttpRequest, actor: Actor) -> dict[str, Any]:
    """What administrators see of the tokens of nodes."""
    if not actor.may(Scope.CLUSTER_ADMIN):
        return {}
    rows = [inventory.node_token_row(one) for one in inventory.node_tokens(actor).filter(revoked_at=None)]
    return {"node_tokens": rows, "control_url": request.build_absolute_uri("/").rstrip("/")}


def _drain(request: HttpRequest, actor: Actor, kind: drains.Kind, name: str, read: ClusterRows) -> dict[str, Any]:
    wanted = request.GET.get("mode", drains.DrainMode.MOVE.value)
    mode = drains.DrainMode(wanted) if wanted in set(drains.DrainMode) else drains.DrainMode.MOVE
    rows, column = (read.nodes, "name") if kind == "node" else (read.devices, "id")
    found = inventory.one([row for row in rows if row[column] == name], kind, name)
    shown = drains.preview(actor, kind, name, mode, drains.PreviewInputs(found, read.devices, read.seen))
    known = [run for run in shown["runs"] if run["run"]]
    return {
        **shown,
        "state": found,
        "modes": {m.value: {"on": m is mode, "url": _with(request, mode=m.value)} for m in drains.DrainMode},
        "first": known[0] if known else None,
        "moment": _moment(mode, shown["runs"]),
        "agents": len({agent["role"] for lease in shown["leases"] for agent in lease["agents"]}),
        "close_url": _closed(request),
        "action": f"/api/v1/{kind}s/{name}/actions/drain",
    }


def _moment(mode: drains.DrainMode, runs: list[dict[str, Any]]) -> str:
    """When the primary button takes effect, in its own words."""
    known = [run for run in runs if run["run"]]
    if not runs:
        return "Drain now"
    if mode is drains.DrainMode.WAIT:
        return "Drain when its run ends" if len(runs) == 1 else "Drain when its runs end"
    if mode is drains.DrainMode.STOP:
        return "Drain by the deadline"
    if len(runs) == 1 and known and known[0]["status"] == "running":
        return f"Drain after step {known[0]['step'] + 1}"
    return "Drain after the current steps"


def _closed(request: HttpRequest) -> str:
    return _with(request, **{"drain": "", "drain-device": "", "mode": "", "edit": "", "add": "", "try": ""})


def _with(request: HttpRequest, **changes: str) -> str:
    kept = {name: value for name, value in request.GET.items() if name not in changes}
    kept.update({name: value for name, value in changes.items() if value})
    if kept.get("view") == "nodes":
        del kept["view"]
    return f"{request.path}?{urlencode(kept)}" if kept else request.path
