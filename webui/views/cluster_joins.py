"""Hosts that ask to join, in the words of *Pools and nodes*."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.inventory import node_join_rows


def waiting(actor: Actor, url_of: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return the hosts that wait, each with the address of its review; none for who may not decide."""
    return [{**_shown(row), "review_url": url_of(row["id"])} for row in node_join_rows.waiting(actor)]


def one(actor: Actor, join_id: str) -> dict[str, Any] | None:
    """Return one request, decided ones too; None for one that has expired or never was."""
    try:
        return _shown(node_join_rows.join_row(node_join_rows.node_join_of(actor, UUID(join_id))))
    except (NotFound, ValueError):
        return None


def devices_told(devices: Sequence[Mapping[str, Any]]) -> str:
    """Count devices by what they are: `2 x NVIDIA H200, 8 CPU shares`."""
    kinds = Counter((one["kind"], one["name"].partition(", share ")[0]) for one in devices if one["kind"] != "cpu")
    words = [f"{count} × {name or kind}" for (kind, name), count in kinds.items()]
    shares = sum(one["kind"] == "cpu" for one in devices)
    return ", ".join([*words, *([f"{shares} CPU share{'s' if shares != 1 else ''}"] if shares else [])]) or "none"


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "devices_told": devices_told(row["devices"])}
