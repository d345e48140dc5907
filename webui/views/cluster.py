"""Pools and nodes: who holds which device, how busy it is, and what a drain would do before it is pressed.

The view (nodes or devices), a pool, words to find, the page, and what stands in the rail are in the URL. All of the
hardware is only glanced at; whole rows are read of what a page shows.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from flexmarl.controlplane.accounts.queries import actor_of, project_names
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.inventory import changes, glances, provided
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.inventory.joining import joining
from flexmarl.controlplane.inventory.processes import processes
from flexmarl.controlplane.runs import drains, queue
from flexmarl.controlplane.runs.pool_look import PoolLook
from flexmarl.controlplane.telemetry import queries as telemetry
from webui.figures.pools import device_marks, heat_rows
from webui.views import cluster_joins, cluster_lists, provided_words
from webui.views.base import is_part, page, show

VIEWS = (("nodes", "Nodes"), ("devices", "Devices"))
NEW_POOL = "new"
"""In the address: not the name of a pool, but the form for a new one."""
LOG_LINES = 6
CLOSED = dict.fromkeys(("drain", "drain-device", "mode", "edit", "add", "try", "join"), "")
"""What the address says of the rail, taken out."""


class ClusterRows(NamedTuple):
    """What the page has read once, for its lists and its rail."""

    pools: list[dict[str, Any]]
    """All of them."""
    seen: PoolLook


@page(Scope.CLUSTER_READ)
def cluster(request: HttpRequest) -> HttpResponse:
    """Show pools, then nodes with their devices, sick ones first; in the rail what the URL asks for."""
    actor = actor_of(request)
    every, seen = glances.devices(), queue.seen_now()
    pools = inventory.pools(every, seen.stored)
    pool, asked = request.GET.get("pool", ""), request.GET.get("q", "").strip()
    view = "devices" if request.GET.get("view") == "devices" else "nodes"
    chosen = cluster_lists.chosen(request, every, pools)
    devices = marked_devices(actor, chosen.device_ids)
    own = {device["id"]: device for device in devices}
    context = {
        "nav": "cluster",
        "view": view,
        "views": [{"word": word, "on": key == view, "url": _with(request, view=key)} for key, word in VIEWS],
        "pools": _pools(chosen, own, queue.waiting_by_pool(seen)),
        "pool_page": chosen.pools,
        "described": [one["name"] for one in pools if one["id"]],
        "pool": pool,
        "asked": asked,
        "kept": [(name, request.GET[name]) for name in ("view", "pool") if request.GET.get(name)],
        "no_pool_url": _with(request, pool=""),
        "nodes": _nodes(chosen, devices, pool) if view == "nodes" else [],
        "node_page": chosen.nodes,
        "devices": [own[device["id"]] for device in chosen.devices.rows if device["id"] in own],
        "device_page": chosen.devices,
        "total": len(every),
        "leased": sum(device["lease"] is not None for device in every),
        "out": sum(device["out"] for device in every),
        "admin": actor.may(Scope.CLUSTER_ADMIN),
        "log": changes.latest(LOG_LINES),
        **cluster_lists.shown_processes(processes(), asked),
        **_hosts(request, pool, pools),
        "here": request.get_full_path(),
        "joining": joining(),
        "joins": cluster_joins.waiting(actor, lambda join: _with(request, **{**CLOSED, "join": join})),
        **_rail(request, actor, ClusterRows(pools, seen)),
    }
    return show(request, "webui/parts/cluster.html" if is_part(request) else "webui/cluster.html", context)


def marked_devices(actor: Actor, among: Collection[str]) -> list[dict[str, Any]]:
    """Some devices with what their cards show: the hue of their agent, use, memory, and whether they are out."""
    devices = telemetry.devices(among, actor=actor)
    busy = telemetry.busy_devices()
    for device in devices:
        device["use"] = device["load"].get("use", busy.get(device["id"]))
        used, size = device["load"].get("memory_bytes"), device["memory_bytes"]
        device["memory_share"] = used / size if used and size else None
        device["out"] = device["state"] != "ready" or device["node_state"] != "ready"
        device["marks"] = device_marks(device["lease"])
    return devices


def _nodes(chosen: cluster_lists.Chosen, devices: list[dict[str, Any]], pool: str) -> list[dict[str, Any]]:
    names = [node.name for node in chosen.nodes.rows]
    found = {node["name"]: node for node in inventory.nodes(names)}
    for node in found.values():
        node["rows"] = [d for d in devices if d["node"] == node["name"] and (not pool or d["pool"] == pool)]
        node["pools"] = sorted({device["pool"] for device in node["rows"]})
        node["out"] = sum(device["state"] != "ready" for device in node["rows"])
    return [found[name] for name in names if name in found]


def _pools(
    chosen: cluster_lists.Chosen, marked: Mapping[str, dict[str, Any]], waiting: dict[str, int]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chosen.pools.rows
    weeks = telemetry.busy_week(timezone.localtime(), {pool["name"]: pool["devices"] for pool in found})
    for pool in found:
        own = chosen.of_pools[pool["name"]]
        shown = [marked[device["id"]] for device in own[: cluster_lists.SQUARES] if device["id"] in marked]
        held = [device["use"] for device in shown if device["lease"] and device["use"] is not None]
        pool["rows"] = shown
        pool["further"] = len(own) - len(shown)
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
            "close_url": _closed(request),
        }
    if asked.get("try") and actor.may(Scope.CLUSTER_ADMIN):
        found = inventory.one([p for p in read.pools if p["name"] == asked["try"]], "pool", asked["try"])
        shown = None if found["provider"]["type"] == "static" else provided.submission(found["name"])
        return {"rail": "try", "trying": found["name"], "submission": shown, "close_url": _closed(request)}
    if asked.get("add") == "node":
        return {"rail": "add", "close_url": _closed(request), **_tokens(request, actor)}
    if asked.get("join") and actor.may(Scope.CLUSTER_ADMIN):
        return {"rail": "join", "close_url": _closed(request), "join": cluster_joins.one(actor, asked["join"])}
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
    devices = inventory.devices()
    rows = inventory.nodes([name]) if kind == "node" else [row for row in devices if row["id"] == name]
    found = inventory.one(rows, kind, name)
    shown = drains.preview(actor, kind, name, mode, drains.PreviewInputs(found, devices, read.seen))
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
    return _with(request, **CLOSED)


def _with(request: HttpRequest, **changes: str) -> str:
    kept = {name: value for name, value in request.GET.items() if name not in changes}
    kept.update({name: value for name, value in changes.items() if value})
    if kept.get("view") == "nodes":
        del kept["view"]
    return f"{request.path}?{urlencode(kept)}" if kept else request.path
