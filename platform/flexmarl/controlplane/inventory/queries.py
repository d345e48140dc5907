"""What others read of the hardware: pools, nodes, devices, leases, and whether a demand fits."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, OuterRef, Prefetch, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from flexmarl.contracts.providers import GrowingProvider, PoolProvider
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.inventory.models import INSTALLATION_POOL, Device, Lease, Node, NodeToken, Pool, ProjectPool
from flexmarl.controlplane.inventory.node_clocks import clock_row
from flexmarl.store.control import host_jobs, pool_rules
from flexmarl.store.control import nodes as node_rows
from flexmarl.store.control.nodes import ALIVE_S

SILENT_AFTER = timedelta(seconds=ALIVE_S)
"""A node without a heartbeat for this long shows as silent."""
ENDED = "ended"
GONE = "gone"
"""State of a node whose host was given back: it is not shown until a host takes its name again."""


def devices(among: Collection[str] | None = None) -> list[dict[str, Any]]:
    """All devices (or some, by id) with the lease that holds each now; `lease.run_no` is the number of the run."""
    rows = (
        Device.objects.exclude(node__state=GONE)
        .select_related("node")
        .prefetch_related(
            Prefetch(
                "leases", Lease.objects.exclude(state=ENDED).select_related("leader").order_by("id"), to_attr="held"
            )
        )
    )
    if among is not None:
        rows = rows.filter(pk__in=among)
    return [_device_row(device) for device in rows]


def _device_row(device: Device) -> dict[str, Any]:
    held: list[Lease] = device.held  # type: ignore[attr-defined]
    lease = held[0] if held else None
    silent = timezone.now() - device.node.heartbeat_at > SILENT_AFTER
    node_state = "silent" if silent else device.node.state
    return {
        "id": device.id,
        "node": device.node_id,
        "kind": device.kind,
        "ordinal": device.ordinal,
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "pool": device.pool,
        "state": "drained" if device.state == "draining" and lease is None else device.state,
        "node_state": node_state,
        "note": device.note,
        "drain": drain_row(device, len(held)),
        "load": device.load,
        "facts": device.facts,
        "version": device.ruled,
        "free": lease is None and device.state == "ready" and device.node.state == "ready" and not silent,
        "lease": None if lease is None else lease_row(lease),
        "url": f"/api/v1/devices/{device.id}",
        "web_url": f"/cluster?view=devices#{device.id}",
    }


def drain_row(ruled: Node | Device, leases_left: int) -> dict[str, Any] | None:
    """Say how a node or device is being emptied and how far that is; None while nobody drains it."""
    if ruled.state != "draining":
        return None
    return {
        "mode": ruled.drain_mode,
        "deadline": rfc3339(ruled.drain_deadline),
        "by": ruled.drain_by,
        "since": rfc3339(ruled.drain_since),
        "leases_left": leases_left,
        "done": leases_left == 0,
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
        "child_up": bool((lease.leader or lease).incarnation),
        "rank": lease.rank,
        "leader_id": lease.leader_id or lease.id,
        "leader_device": (lease.leader or lease).device_id,
    }


def leases_of(run_no: int) -> list[Lease]:
    """The leases a run holds now, with their devices."""
    held = Lease.objects.select_related("device", "leader").filter(run_id=run_no).exclude(state=ENDED)
    return list(held.order_by("id"))


def nodes(among: Collection[str] | None = None) -> list[dict[str, Any]]:
    """All nodes (or some, by name) with how long they have been silent."""
    live = Lease.objects.exclude(state=ENDED).filter(device__node=OuterRef("pk")).order_by()
    counted = live.values("device__node").annotate(n=Count("pk")).values("n")
    rows = Node.objects.exclude(state=GONE).prefetch_related("devices").annotate(leases=Coalesce(Subquery(counted), 0))
    if among is not None:
        rows = rows.filter(pk__in=among)
    now = timezone.now()
    return [_node_row(node, now) for node in rows]


def _node_row(node: Node, now: datetime) -> dict[str, Any]:
    held: int = node.leases  # type: ignore[attr-defined]
    shown = "drained" if node.state == "draining" and held == 0 else node.state
    booted = node.facts.get("booted_at")
    return {
        "name": node.name,
        "address": node.address,
        "agent_version": node.version,
        "facts": node.facts,
        "load": node.load,
        "clock": clock_row(node.load),
        "state": shown if now - node.heartbeat_at <= SILENT_AFTER else "silent",
        "rule": shown,
        "cordoned": node.state == "cordoned",
        "note": node.note,
        "drain": drain_row(node, held),
        "leases": held,
        "registered_at": rfc3339(node.registered_at),
        "heartbeat_at": rfc3339(node.heartbeat_at),
        "silent_s": round(max(0.0, (now - node.heartbeat_at).total_seconds()), 1),
        "uptime_s": round(now.timestamp() - booted, 1) if isinstance(booted, int | float) else None,
        "devices": [device.id for device in node.devices.all()],
        "version": node.ruled,
        "url": f"/api/v1/nodes/{node.name}",
        "web_url": f"/cluster#{node.name}",
    }


def one(rows: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """Return the only row. Raises NotFound when there is none."""
    if not rows:
        raise NotFound(f"There is no {kind} {name}.")
    return rows[0]


def pools(
    found: Sequence[Mapping[str, Any]] | None = None, rules: pool_rules.PoolRules | None = None
) -> list[dict[str, Any]]:
    """All pools, described or only named by a device, with counts of their devices, bindings and quotas.

    Who has read all devices, or the rules, hands them in.
    """
    described = {pool.name: pool for pool in Pool.objects.prefetch_related("default_of")}
    found = devices() if found is None else found
    rules = rules or pool_rules.rules(store_connection())
    own: dict[str, list[Mapping[str, Any]]] = {name: [] for name in described}
    for device in found:
        own.setdefault(device["pool"], []).append(device)
    return [
        {
            **_pool_row(name, described.get(name), own[name]),
            "projects": sorted(rules.bindings.get(name, ())),
            "quotas": [quota_row(q, rules.held.get((q.project, name), 0)) for q in rules.quotas if q.pool == name],
        }
        for name in sorted(own)
    ]


def has_jobs(pool: str) -> bool:
    """Tell whether a provider was asked for hosts of a pool that have not ended."""
    return any(job.pool == pool for job in host_jobs.open_jobs(store_connection()))


def accesses(pool: str) -> set[str]:
    """Return how the hosts of a pool whose jobs have not ended reach the installation."""
    jobs = host_jobs.open_jobs(store_connection())
    return {str(job.options.get("access", "shared_folder")) for job in jobs if job.pool == pool}


def pool_names() -> list[str]:
    """Name all pools, described or only named by a device."""
    described = Pool.objects.order_by().values_list("name", flat=True)
    return sorted({*described, *Device.objects.order_by().values_list("pool", flat=True).distinct()})


def quota_row(quota: pool_rules.QuotaRow, held: int) -> dict[str, Any]:
    """Return a quota with what is held of it now."""
    return {
        "project": quota.project,
        "pool": quota.pool,
        "devices": quota.devices,
        "held": held,
        "version": quota.version,
        "url": f"/api/v1/pools/{quota.pool}/quotas/{quota.project}",
    }


def quota_of(pool: str, project: str) -> dict[str, Any]:
    """Return one quota. Raises NotFound when there is none."""
    rules = pool_rules.rules(store_connection())
    found = [q for q in rules.quotas if (q.pool, q.project) == (pool, project)]
    if not found:
        raise NotFound(f"Project {project} has no quota in {pool}.")
    return quota_row(found[0], rules.held.get((project, pool), 0))


def _pool_row(name: str, pool: Pool | None, own: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "id": str(pool.id) if pool else None,
        "name": name,
        "description": pool.description if pool else "",
        "note": pool.note if pool else "",
        "device_hour_price": pool.device_hour_price if pool else None,
        "preemptible": pool.preemptible if pool else False,
        "provider": (pool.provider if pool else None) or {"type": "static"},
        "is_default": pool.is_default if pool else False,
        "default_of": sorted(row.project_id for row in pool.default_of.all()) if pool else [],
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


def prices(names: Iterable[str]) -> dict[str, float]:
    """Return what a device hour costs, of the pools among some where somebody has said."""
    found = Pool.objects.filter(name__in=set(names), device_hour_price__isnull=False)
    rows = found.values_list("name", "device_hour_price")
    return {name: price for name, price in rows if price is not None}


def default_pool(project: str) -> str:
    """Name the pool that a project's runs take when they name none: its own, the installation's, or `default`."""
    own = ProjectPool.objects.filter(project_id=project).values_list("pool__name", flat=True).first()
    chosen = Pool.objects.filter(is_default=True).values_list("name", flat=True).first()
    return own or chosen or INSTALLATION_POOL


def engines_of(pool: str) -> set[str] | None:
    """Name the rollout engines that nodes with devices of a pool have; None when that is not known of all of them."""
    facts = Node.objects.filter(devices__pool=pool).distinct().values_list("facts", flat=True)
    offered = [found.get("engines") for found in facts]
    if not offered or not all(isinstance(names, list) for names in offered):
        return None
    return {str(name) for names in offered for name in names}


def starts_containers(pool: str) -> bool | None:
    """Tell whether a node with devices of a pool starts containers; None when that is not known of all of them."""
    facts = list(Node.objects.filter(devices__pool=pool).distinct().values_list("facts", flat=True))
    if not facts or not all("containers" in found for found in facts):
        return None
    return any(found["containers"] for found in facts)


def may_use(project: str, pool: str) -> bool:
    """Say whether a project's runs may ask for devices of a pool."""
    bound = pool_rules.rules(store_connection()).bindings.get(pool)
    return not bound or project in bound


def growth(pool: str) -> tuple[int, int]:
    """Return how many hosts a pool's provider may give it, and the whole devices of each; zeros where none does."""
    kept = Pool.objects.filter(name=pool).values_list("provider", flat=True).first()
    options = PoolProvider.model_validate({"provider": kept}).provider if kept else None
    return (options.max_nodes, options.offered) if isinstance(options, GrowingProvider) else (0, 0)


def host_sizes(pool: str, found: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
    """Count the devices of each host of a pool that could be those of one engine: of one kind, each a whole one."""
    own = [one for one in (devices() if found is None else found) if one["pool"] == pool and one["state"] != "lost"]
    there = Counter((one["node"], one["kind"]) for one in own if one["facts"].get("share", 1) == 1)
    return [*there.values(), *([growth(pool)[1]] if found is None and growth(pool)[0] else [])]


def fit(demand: Mapping[str, tuple[str, int]], each: int = 1, most: int = 0) -> dict[str, Any]:
    """Say whether a gang fits now. `demand`: use -> (pool, devices); `each`: devices of an engine, of one host; `most`:
    devices that engines may grow to, 0: as many as they begin with."""
    found = devices()
    wanted: dict[str, int] = {}
    for pool, count in demand.values():
        wanted[pool] = wanted.get(pool, 0) + count
    lines, enough, ever = [], True, True
    for pool, count in wanted.items():
        own = [device for device in found if device["pool"] == pool]
        free = sum(device["free"] for device in own)
        healthy = sum(device["state"] == "ready" and device["node_state"] == "ready" for device in own)
        hosts, each_has = growth(pool)
        enough, ever = enough and free >= count, ever and max(healthy, hosts * each_has) >= count
        lines.append(f"Needs {count} in {pool}: {free} of {len(own)} free.")
        if most and pool == demand["engine"][0] and most > demand["engine"][1]:
            further = most - demand["engine"][1]
            now = min(further, max(0, free - count)) // each * each
            lines.append(f"Up to {further} more join while nobody waits for them, {now} of them now.")
    if each > 1 and "engine" in demand:
        pool, count = demand["engine"]
        healthy = [one for one in found if one["state"] == "ready" and one["node_state"] == "ready"]
        now, then = (
            sum(size // each for size in host_sizes(pool, some)) * each >= count
            for some in ([one for one in healthy if one["free"]], healthy)
        )
        enough, ever = enough and now, ever and then
        lines.append(f"Each engine needs {each} of one host: {'free' if now else 'not free'}.")
    return {
        "needed": [
            {
                "use": use,
                "pool": pool,
                "devices": count,
                "each": each if use == "engine" else 1,
                "max_devices": max(count, most) if use == "engine" else count,
                "free": sum(device["free"] for device in found if device["pool"] == pool),
            }
            for use, (pool, count) in demand.items()
        ],
        "fits_now": enough,
        "fits_ever": ever,
        "text": " ".join(lines),
    }


def node_tokens(actor: Actor) -> QuerySet[NodeToken]:
    """The tokens of nodes, newest first; those that were revoked too."""
    actor.require(Scope.CLUSTER_ADMIN)
    return NodeToken.objects.select_related("created_by")


def is_behind_the_door(pool: str) -> bool:
    """Tell whether a pool is that of nodes with tokens, or is given such hosts."""
    if NodeToken.objects.filter(pool=pool, revoked_at=None).exists():
        return True
    return homes_end(pool)


def homes_end(pool: str) -> bool:
    """Tell whether a pool's hosts are given to it with tokens, and keep nothing when they end."""
    return Pool.objects.filter(name=pool, provider__access="node_token").exists()


def can_keep() -> bool:
    """Tell whether a node is registered that keeps what nodes with a token send."""
    return node_rows.can_keep(store_connection())


def node_token_of(actor: Actor, token_id: UUID | str) -> NodeToken:
    """Return a node token. Raises NotFound."""
    found = node_tokens(actor).filter(pk=token_id).first()
    if found is None:
        raise NotFound("There is no such node token.")
    return found


def node_token_row(token: NodeToken) -> dict[str, Any]:
    """Return a node token as a plain value; its secret is stored nowhere."""
    return {
        "id": str(token.id),
        "node": token.node,
        "pool": token.pool,
        "key": str(token),
        "job": str(token.job) if token.job else None,
        "created_by": token.created_by.username if token.created_by else None,
        "state": "revoked" if token.revoked_at else "active",
        "created_at": rfc3339(token.created_at),
        "updated_at": rfc3339(token.updated_at),
        "rotated_at": rfc3339(token.rotated_at),
        "former_until": rfc3339(token.former_until),
        "revoked_at": rfc3339(token.revoked_at),
        "last_used_at": rfc3339(token.last_used_at),
        "version": token.version,
        "url": f"/api/v1/node-tokens/{token.id}",
    }
