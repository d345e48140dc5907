"""Hosts that providers were asked for: their jobs as people read them, what would be submitted, and cancelling one."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from flexmarl.contracts.providers import GrowingProvider, StaticProvider
from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, InvalidState, NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.inventory.models import Pool
from flexmarl.controlplane.inventory.providers import HostRequest, options_of, provider_of
from flexmarl.store.control import host_jobs
from flexmarl.store.control.host_jobs import HostJob

SHOWN = 50
"""Jobs of a pool that are listed: those that have not ended, then the newest."""
EXAMPLE = UUID(int=0)
"""Stands for the id of a job that is not there yet."""


def jobs(pool: str) -> list[dict[str, Any]]:
    """List the jobs of a pool, those that have not ended first. Raises NotFound without such a pool."""
    found = _pool(pool)
    return [_row(job, found.device_hour_price) for job in host_jobs.jobs_of(store_connection(), pool, SHOWN)]


def is_provided() -> bool:
    """Tell whether a process asks providers for hosts."""
    return host_jobs.is_provided(store_connection())


def living() -> dict[str, list[dict[str, Any]]]:
    """Return the jobs that have not ended, without their cost, by pool."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in host_jobs.open_jobs(store_connection()):
        found.setdefault(one.pool, []).append(_row(one, None))
    return found


def job(pool: str, identity: UUID) -> dict[str, Any]:
    """Return one job. Raises NotFound without it."""
    return _row(_job(pool, identity), _pool(pool).device_hour_price)


def submission(pool: str) -> dict[str, Any]:
    """Say what would be submitted for the next host of a pool; nothing is. Raises Conflict where nothing can be."""
    options = options_of(_pool(pool).provider)
    if isinstance(options, StaticProvider):
        raise Conflict(
            f"People start the hosts of {pool} themselves. Set its provider, such as slurm, ray or kubernetes, first."
        )
    asked = HostRequest(EXAMPLE, host_jobs.name_of(EXAMPLE), f"{pool}-1", pool, options.model_dump(mode="json"))
    found = provider_of(asked.options).propose(asked)
    return {
        "provider": options.type,
        "command": found.command,
        "script": found.script,
        "settings_file": found.settings_file,
        "notices": list(found.notices),
        "offers": list(found.offers),
    }


@transaction.atomic
def cancel(actor: Actor, pool: str, identity: UUID) -> None:
    """End a job: at once before its host works, and once its host is empty after that. Raises InvalidState."""
    actor.require(Scope.CLUSTER_ADMIN)
    conn, found = store_connection(), _job(pool, identity)
    if found.ended_at is not None or found.unwanted:
        raise InvalidState("The job has ended, or is being cancelled.", state=found.state, allowed_actions=[])
    why = f"cancelled by {actor.name}"
    if not found.node_state:
        host_jobs.unwant(conn, identity, why)
    elif not host_jobs.leave(conn, identity, why, None):
        text = "Its host is being emptied, and the job ends then."
        raise InvalidState(text, state=found.state, allowed_actions=[])
    record(actor, "pool.cancel-job", "pool", pool, pool, job=str(identity), node=found.node)
    live.announce_on_commit(live.CLUSTER, 0)


def _pool(name: str) -> Pool:
    found = Pool.objects.filter(name=name).first()
    if found is None:
        raise NotFound(f"Pool {name} does not exist.")
    return found


def _job(pool: str, identity: UUID) -> HostJob:
    found = host_jobs.job(store_connection(), identity)
    if found is None or found.pool != pool:
        raise NotFound(f"Pool {pool} has no job {identity}.")
    return found


def _row(found: HostJob, price: float | None) -> dict[str, Any]:
    options = options_of(found.options)
    devices = options.offered if isinstance(options, GrowingProvider) else 0
    began = found.started_at
    hours = 0.0 if began is None else max(0.0, (found.ended_at or found.now) - began) / 3600.0 * devices
    return {
        "id": str(found.id),
        "pool": found.pool,
        "provider": found.provider,
        "native": found.native,
        "name": found.name,
        "node": found.node,
        "registered": bool(found.node_state),
        "state": found.state,
        "cancelling": found.unwanted and found.ended_at is None,
        "reason": found.reason,
        "next_step": found.next_step,
        "place": found.place,
        "why": found.why,
        "leases": found.leases,
        "devices": devices,
        "device_hours": round(hours, 4),
        "cost": None if price is None else round(hours * price, 4),
        "requested_at": _time(found.requested_at),
        "submitted_at": _time(found.submitted_at),
        "started_at": _time(found.started_at),
        "leaving_at": _time(found.leaving_at),
        "ended_at": _time(found.ended_at),
        "url": f"/api/v1/pools/{found.pool}/jobs/{found.id}",
    }


def _time(moment: float | None) -> str | None:
    return None if moment is None else rfc3339(datetime.fromtimestamp(moment, UTC))
