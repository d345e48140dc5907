"""What others read of the hardware: pools, nodes, devices, leases, and whether a demand fits."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.db.models import Prefetch
from django.utils import timezone

from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.inventory.models import Device, Lease, Node, Pool
from flexmarl.store.nodes import ALIVE_S

SILENT_AFTER = timedelta(seconds=ALIVE_S)
"""A node without a heartbeat for this long shows as silent."""
ENDED = "ended"


def devices(device_id: str | None = None) -> list[dict[str, Any]]:
    """All devices (or one) with the lease that holds each now; `lease.run_no` is the number of the run."""
    rows = Device.objects.select_related("node").prefetch_related(
        Prefetch("leases", Lease.objects.exclude(state=ENDED), to_attr="held")
    )
    if device_id is not None:
        rows = rows.filter(pk=device_id)
    return [_device_row(device) for device in rows]


def _device_row(device: Device) -> dict[str, Any]:
    held: list[Lease] = device.held  # type: ignore[attr-defined]
    lease = held[0] if held else None
    silent = timezone.now() - device.node.heartbeat_at > SILENT_AFTER
    return {
        "id": device.id,
        "node": device.node_id,
        "kind": device.kind,
        "ordinal": device.ordinal,
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "pool": device.pool,
        "state": device.state,
        "node_state": "silent" if silent else device.node.state,
        "free": lease is None and device.state == "ready" and device.node.state == "ready" and not silent,
        "lease": None if lease is None else lease_row(lease),
        "url": f"/api/v1/devices/{device.id}",
        "web_url": f"/cluster#{device.id}",
    }


def lease_row(lease: Lease) -> dict[str, Any]:
    """Return a lease as a plain value."""
    return {
        "id": lease.id,
        "run_no": lease.run_id,
        "use": lease.use,
        "state": lease.state,
        "granted_at": rfc3339(lease.granted_at),
        "expires_at": rfc3339(lease.expires_at),
        "child_up": bool(lease.incarnation),
    }


def leases_of(run_no: int) -> list[Lease]:
    """The leases a run holds now, with their devices."""
    return list(Lease.objects.select_related("device").filter(run_id=run_no).exclude(state=ENDED).order_by("id"))


def nodes(name: str | None = None) -> list[dict[str, Any]]:
    """All nodes (or one) with how long they have been silent."""
    rows = Node.objects.prefetch_related("devices")
    if name is not None:
        rows = rows.filter(pk=name)
    now = timezone.now()
    return [
        {
            "name": node.name,
            "address": node.address,
            "agent_version": node.version,
            "facts": node.facts,
            "state": node.state if now - node.heartbeat_at <= SILENT_AFTER else "silent",
            "cordoned": node.state == "cordoned",
            "registered_at": rfc3339(node.registered_at),
            "heartbeat_at": rfc3339(node.heartbeat_at),
            "silent_s": round(max(0.0, (now - node.heartbeat_at).total_seconds()), 1),
            "devices": [device.id for device in node.devices.all()],
            "url": f"/api/v1/nodes/{node.name}",
            "web_url": f"/cluster#{node.name}",
        }
        for node in rows
    ]


def one(rows: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the only row. Raises NotFound when there is none."""
    if not rows:
        raise NotFound(f"There is no {kind} {name}.")
    return rows[0]


def pools() -> list[dict[str, Any]]:
    """All pools, described or only named by a device, with counts of their devices."""
    described = {pool.name: pool for pool in Pool.objects.all()}
    found = devices()
    names = sorted({*described, *(device["pool"] for device in found)})
    return [_pool_row(name, described.get(name), [d for d in found if d["pool"] == name]) for name in names]


def _pool_row(name: str, pool: Pool | None, own: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": str(pool.id) if pool else None,
        "name": name,
        "description": pool.description if pool else "",
        "devices": len(own),
        "free": sum(device["free"] for device in own),
        "leased": sum(device["lease"] is not None for device in own),
        "unavailable": sum(not device["free"] and device["lease"] is None for device in own),
        "created_at": rfc3339(pool.created_at) if pool else None,
        "updated_at": rfc3339(pool.updated_at) if pool else None,
        "version": pool.version if pool else 0,
        "url": f"/api/v1/pools/{name}",
        "web_url": f"/cluster?pool={name}",
    }


def fit(demand: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """Say whether a gang fits now. `demand`: use -> (pool, devices)."""
    found = devices()
    wanted: dict[str, int] = {}
    for pool, count in demand.values():
        wanted[pool] = wanted.get(pool, 0) + count
    lines, enough, ever = [], True, True
    for pool, count in wanted.items():
        own = [device for device in found if device["pool"] == pool]
        free = sum(device["free"] for device in own)
        healthy = sum(device["state"] == "ready" for device in own)
        enough, ever = enough and free >= count, ever and healthy >= count
        lines.append(f"Needs {count} in {pool}: {free} of {len(own)} free.")
    return {
        "needed": [{"use": use, "pool": pool, "devices": count} for use, (pool, count) in demand.items()],
        "fits_now": enough,
        "fits_ever": ever,
        "text": " ".join(lines),
    }
