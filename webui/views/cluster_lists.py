"""Which pools, nodes and devices a page of the cluster shows, out of however many there are."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.http import HttpRequest

from flexmarl.controlplane.inventory import glances
from flexmarl.controlplane.inventory.glances import NodeGlance
from webui.narrowing import link_with

T = TypeVar("T")
POOLS, NODES, DEVICES, PROCESSES = 12, 25, 50, 25
"""Of one page."""
ALERTS = 6
"""Processes that do not report, each with what to do."""
SQUARES = 96
"""Devices of a pool that its card shows one by one."""


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list."""

    rows: list[T]
    count: int
    """Of the whole list."""
    first: int
    """Place of the first row, from 1; 0 of an empty list."""
    former_url: str
    next_url: str
    """Empty: there is none."""

    @property
    def last(self) -> int:
        """Return the place of the last row."""
        return self.first + len(self.rows) - 1 if self.rows else 0

    @property
    def whole(self) -> bool:
        """Tell whether this is all."""
        return len(self.rows) == self.count


@dataclass(frozen=True, slots=True)
class Chosen:
    """What stands on a page."""

    pools: ListPage[dict[str, Any]]
    nodes: ListPage[NodeGlance]
    devices: ListPage[dict[str, Any]]
    of_pools: dict[str, list[dict[str, Any]]]
    """Pool -> its devices."""
    device_ids: Collection[str]
    """Devices of which the page needs whole rows."""


def chosen(request: HttpRequest, every: Sequence[dict[str, Any]], pools: Sequence[dict[str, Any]]) -> Chosen:
    """Choose what the address asks for: of a pool, with words in their names, sick ones first, a page of each list.

    Whoever asks for a pool finds its card first; of more pools than a page has, those come next with devices out.
    Words find a node by its own name, its pools' or its devices'.
    """
    pool, words = request.GET.get("pool", ""), request.GET.get("q", "").strip().lower()
    found = [
        device
        for device in every
        if (not pool or device["pool"] == pool) and _has(words, device["id"], device["node"], device["pool"])
    ]
    of_pools: dict[str, list[dict[str, Any]]] = {one["name"]: [] for one in pools}
    for device in every:
        of_pools.setdefault(device["pool"], []).append(device)
    met = {device["pool"] for device in found}
    cards = [one for one in pools if not words or one["name"] in met or _has(words, one["name"])]
    many = len(cards) > POOLS
    cards.sort(key=lambda one: (one["name"] != pool, many and not one["unavailable"]))
    shown_pools = page_of(request, "pools", cards, POOLS)
    devices = request.GET.get("view") == "devices"
    shown_devices = page_of(request, "page", found if devices else [], DEVICES)
    shown_nodes = page_of(request, "page", [] if devices else _nodes(found, pool, words), NODES)
    names = {node.name for node in shown_nodes.rows}
    ids = {device["id"] for device in shown_devices.rows}
    ids |= {device["id"] for device in every if device["node"] in names}
    for one in shown_pools.rows:
        ids |= {device["id"] for device in of_pools[one["name"]][:SQUARES]}
    return Chosen(shown_pools, shown_nodes, shown_devices, of_pools, ids)


def _nodes(found: Sequence[dict[str, Any]], pool: str, words: str) -> list[NodeGlance]:
    met = {device["node"] for device in found}
    sick = {device["node"] for device in found if device["state"] != "ready"}
    rows = [node for node in glances.nodes() if node.name in met or (not pool and _has(words, node.name))]
    return sorted(rows, key=lambda node: (node.ready and node.name not in sick, node.name))


def _has(words: str, *names: str) -> bool:
    return not words or any(words in name.lower() for name in names)


def page_of(request: HttpRequest, parameter: str, rows: list[T], size: int) -> ListPage[T]:
    """Return the page of a list that the address names by its number, from 1; the nearest one that there is."""
    asked = request.GET.get(parameter, "1")
    pages = max(1, -(-len(rows) // size))
    number = min(max(int(asked) if asked.isdecimal() and len(asked) < 9 else 1, 1), pages)
    own = rows[(number - 1) * size : number * size]

    def url(to: int) -> str:
        return link_with(request, **{parameter: str(to) if to > 1 else ""}) if 1 <= to <= pages else ""

    return ListPage(own, len(rows), (number - 1) * size + 1 if rows else 0, url(number - 1), url(number + 1))


def shown_processes(found: list[dict[str, Any]], words: str) -> dict[str, Any]:
    """Return the processes that a page shows, those first that do not report, and how many more there are."""
    rows = [one for one in found if _has(words.lower(), one["node"], one["name"])]
    away = [one for one in rows if one["state"] != "running"]
    return {
        "processes": rows[:PROCESSES],
        "processes_further": max(0, len(rows) - PROCESSES),
        "alerts": away[:ALERTS],
        "alerts_further": max(0, len(away) - ALERTS),
    }
