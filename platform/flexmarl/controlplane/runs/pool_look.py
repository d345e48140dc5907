"""What the arbiter is asked with: the same look for the driver that grants and for the queue that explains."""

from dataclasses import dataclass

from psycopg import Connection

from flexmarl.controlplane.experiments.leasing import needed
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules
from flexmarl.store.control import leased_memory, leases, pool_rules
from flexmarl.store.control.pool_rules import PoolRules


@dataclass(frozen=True, slots=True)
class PoolLook:
    demands: tuple[DeviceDemand, ...]
    free: tuple[FreeDevice, ...]
    rules: Rules
    stored: PoolRules
    """Where the rules come from."""


def look(conn: Connection, *, always: bool = False) -> PoolLook:
    """Read demands, free devices and rules. Without a demand the rest is left unread, unless it is asked for."""
    demands = tuple(
        DeviceDemand(
            run_id=d.run_id,
            command_no=d.no,
            pool=d.request.pool,
            engines=d.request.engines,
            trainer_pool=d.request.trainer_pool,
            trainers=d.request.trainers,
            project=d.project,
            priority=d.priority,
            since=d.since,
            running=d.running,
            replaces=d.replaces,
            holds=d.holds,
            stalled=d.stalled,
            engine=d.engine,
            engine_devices=d.request.engine_devices,
            memory=needed(d.spec, d.request.beside > 0),
        )
        for d in leases.open_demands(conn)
    )
    if not (demands or always):
        return PoolLook((), (), Rules({}), PoolRules({}, [], {}))
    supply, stored = leases.supply(conn), pool_rules.rules(conn)
    free = tuple(
        FreeDevice(
            device.id,
            device.node,
            device.pool,
            supply.engines.get(device.node),
            leased_memory.room_of(device.kind, device.node, device.id),
            device.kind,
            device.whole,
        )
        for device in supply.free
    )
    limits = {(quota.project, quota.pool): quota.devices for quota in stored.quotas}
    memory = leased_memory.left(conn)
    rules = Rules(
        supply.capacity, stored.bindings, limits, stored.held, stored.weights, stored.now, memory, supply.hosts
    )
    return PoolLook(demands, free, rules, stored)
