"""What a drain would do, before it is asked for: which leases, whose, and where each would go by the arbiter now.

Nothing here is a promise: a run that ends or asks meanwhile changes the answer. Figures that nobody has are left out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexmarl.contracts.events import DeviceUse
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import queries as inventory
from flexmarl.controlplane.runs import queries, queue
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.runs.pool_look import PoolLook
from flexmarl.orchestrator.pool.arbiter import Arbitration, Requirement, Unmet, WaitingRun, arbitrate
from flexmarl.orchestrator.pool.types import DeviceDemand
from flexmarl.orchestrator.pool.wording import in_words
from flexmarl.store.control import pool_rules
from flexmarl.store.control.cordons import DrainMode, Kind

__all__ = ["AffectedLease", "DrainMode", "Kind", "PreviewInputs", "preview"]

_PLAIN = frozenset({Unmet.NOT_FREE, Unmet.SCATTERED, Unmet.POOL_TOO_SMALL, Unmet.HOSTS_TOO_SMALL})
_SPARE = "is given back: its run goes on with its other engines"
_FIRST = 1 << 40
"""Command numbers of requests that are only imagined begin here: no run has so many."""


@dataclass(frozen=True, slots=True)
class AffectedLease:
    """A lease that a drain would touch."""

    id: int
    run_no: int
    use: str
    device_id: str
    pool: str
    devices: int = 1
    """Of its engine: all of them move together."""


@dataclass(frozen=True, slots=True)
class PreviewInputs:
    """What a preview starts from, for those who have read it already."""

    found: Mapping[str, Any]
    """Row of the node or device."""
    devices: Sequence[Mapping[str, Any]]
    """Rows of all devices."""
    look: PoolLook


def preview(actor: Actor, kind: Kind, key: str, mode: DrainMode, read: PreviewInputs | None = None) -> dict[str, Any]:
    """Say which leases a drain of a node or device would touch and what would become of each."""
    actor.require(Scope.CLUSTER_READ)
    read = read or _read(kind, key)
    devices = [row for row in read.devices if row["node" if kind == "node" else "id"] == key]
    leases = _held(devices, read.devices)
    runs = {run.no: run for run in Run.objects.select_related("state").filter(no__in={x.run_no for x in leases})}
    now, seen = read.look, _without(read.look, devices)
    priorities = pool_rules.priorities(store_connection(), list(runs))
    spare = _spare(leases, seen)
    moving = [lease for lease in leases if lease.id not in spare]
    moved = arbitrate([*seen.demands, *_replacements(moving, runs, priorities)], seen.free, seen.rules)
    visible = queries.runs(actor).filter(no__in=runs)
    rows = {row["no"]: row for row in queries.run_rows(visible)}
    return {
        "kind": kind,
        "name": key,
        "version": read.found["version"],
        "mode": mode.value,
        "leases": [_lease(lease, rows, moved, mode, spare) for lease in leases],
        "runs": [_run(run.no, rows, [x for x in leases if x.run_no == run.no]) for run in runs.values()],
        "queue": _queue(actor, now, seen),
        "text": _summary(len(leases), len(runs)),
    }


def _read(kind: Kind, key: str) -> PreviewInputs:
    devices = inventory.devices()
    rows = inventory.nodes([key]) if kind == "node" else [row for row in devices if row["id"] == key]
    return PreviewInputs(inventory.one(rows, kind, key), devices, queue.seen_now())


def _held(drained: Iterable[Mapping[str, Any]], devices: Iterable[Mapping[str, Any]]) -> list[AffectedLease]:
    """List the leases on drained devices, an engine of several devices once."""
    sizes = Counter(row["lease"]["leader_id"] for row in devices if row["lease"])
    found: dict[int, AffectedLease] = {}
    for row in drained:
        if lease := row["lease"]:
            leader = lease["leader_id"]
            own = AffectedLease(leader, lease["run_no"], lease["use"], row["id"], row["pool"], sizes.get(leader, 1))
            found.setdefault(leader, own)
    return sorted(found.values(), key=lambda lease: lease.id)


def _spare(leases: Iterable[AffectedLease], seen: PoolLook) -> set[int]:
    """Return the leases of engines that their runs can do without: any of a fleet, as many as it has above its
    minimum."""
    left = Counter(engine.run_id for engine in seen.surplus)
    found = set()
    for lease in leases:
        if lease.use == DeviceUse.ENGINE and left[lease.run_no] > 0:
            left[lease.run_no] -= 1
            found.add(lease.id)
    return found


def _without(seen: PoolLook, devices: Sequence[Mapping[str, Any]]) -> PoolLook:
    """Take the drained devices out of what is free and of what can serve."""
    gone = {row["id"] for row in devices}
    capacity = dict(seen.rules.capacity)
    for row in devices:
        if row["state"] == "ready" and row["node_state"] == "ready":
            capacity[row["pool"]] = max(0, capacity.get(row["pool"], 0) - 1)  # the two reads are moments apart
    free = tuple(device for device in seen.free if device.device_id not in gone)
    return replace(seen, free=free, rules=replace(seen.rules, capacity=capacity))


def _replacements(
    leases: Iterable[AffectedLease], runs: dict[int, Run], priorities: dict[int, int]
) -> list[DeviceDemand]:
    """One request per lease, as the core would make it now: younger than all that wait."""
    found = []
    for lease in leases:
        run = runs.get(lease.run_no)
        engine = lease.use == DeviceUse.ENGINE
        pool = lease.pool
        found.append(
            DeviceDemand(
                run_id=lease.run_no, command_no=_FIRST + lease.id, pool=pool, engines=int(engine), trainer_pool=pool,
                trainers=int(not engine), project=run.project_id if run else "",
                priority=priorities.get(lease.run_no, 0), since=float(_FIRST), running=True, replaces=True,
                engine_devices=lease.devices if engine else 1,
            )
        )  # fmt: skip
    return found


def _lease(
    lease: AffectedLease, rows: dict[int, dict[str, Any]], moved: Arbitration, mode: DrainMode, spare: set[int]
) -> dict[str, Any]:
    row = rows.get(lease.run_no)
    no = _FIRST + lease.id
    to = next((", ".join(p.device_id for p in g.placements) for g in moved.grants if g.command_no == no), None)
    lack = next((w.requirement for w in moved.waiting if w.command_no == no), None)
    return {
        "lease_id": lease.id,
        "device_id": lease.device_id,
        "use": lease.use,
        "run": row["key"] if row else None,
        "run_text": row["key"] if row else queue.SOMEBODY,
        "agents": _agents(row, lease.use),
        "moves_to": to if mode is DrainMode.MOVE else None,
        "text": _SPARE if lease.id in spare and mode is DrainMode.MOVE else _fate(mode, to, lack),
    }


def _agents(row: dict[str, Any] | None, use: str) -> list[dict[str, Any]]:
    """Whose work a lease does: an engine answers for all agents, a trainer trains those that are trained."""
    if row is None:
        return []
    return [agent for agent in row["agents"] if use == DeviceUse.ENGINE or agent["trainable"]]


def _fate(mode: DrainMode, to: str | None, lack: Requirement | None) -> str:
    if mode is DrainMode.WAIT:
        return "stays until its run ends"
    if mode is DrainMode.STOP:
        return "its run stops before the deadline"
    if to is not None:
        return f"to {to}"
    waits = "no free device: it stays here until there is one"
    return waits if lack is None or lack.code in _PLAIN else f"{waits}, after the runs that are already waiting"


def _run(no: int, rows: dict[int, dict[str, Any]], leases: Sequence[AffectedLease]) -> dict[str, Any]:
    row = rows.get(no)
    if row is None:
        return {"run": None, "run_text": queue.SOMEBODY, "leases": len(leases)}
    return {
        "run": row["key"],
        "run_text": row["key"],
        "web_url": row["web_url"],
        "status": row["status"],
        "leases": len(leases),
        "step": row["step"],
        "max_steps": row["max_steps"],
        "step_seconds": row["progress"]["step_seconds"],
        "eta_s": row["eta_s"],
    }


def _queue(actor: Actor, now: PoolLook, then: PoolLook) -> list[dict[str, Any]]:
    """Waiting runs that could be served as things are and could not while these devices are away."""
    names = queue.run_names(actor, [demand.run_id for demand in now.demands])
    before = {(w.run_id, w.command_no) for w in arbitrate(now.demands, now.free, now.rules).waiting if _small(w)}
    after = [w for w in arbitrate(then.demands, then.free, then.rules).waiting if _small(w)]
    return [
        {"run": queue.name_in(names, w.run_id), "text": in_words(w.requirement)}
        for w in after
        if (w.run_id, w.command_no) not in before
    ]


def _small(waiting: WaitingRun) -> bool:
    return waiting.requirement.code is Unmet.POOL_TOO_SMALL


def _summary(leases: int, runs: int) -> str:
    if leases == 0:
        return "Nothing runs there: it is drained immediately."
    return f"{leases} lease{'' if leases == 1 else 's'} of {runs} run{'' if runs == 1 else 's'} there now."
