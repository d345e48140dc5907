"""What the arbiter is asked with: the same look for the driver that grants and for the queue that explains."""

from dataclasses import dataclass

from psycopg import Connection

from flexmarl.controlplane.experiments.leasing import needed
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules, SurplusEngine
from flexmarl.store.control import leased_memory, leases, pool_rules
from flexmarl.store.control.nodes import DeviceRow, Supply
from flexmarl.store.control.pool_rules import PoolRules
from flexmarl.store.control.surplus import surplus


@dataclass(frozen=True, slots=True)
class PoolLook:
    demands: tuple[DeviceDemand, ...]
    free: tuple[FreeDevice, ...]
    rules: Rules
    stored: PoolRules
    """Where the rules come from."""
    surplus: tuple[SurplusEngine, ...] = ()
    """Engines that their runs can do without; read where somebody waits who cannot, or for a page."""


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
            extra=d.extra,
            memory=needed(d.spec, d.request.beside > 0),
        )
        for d in leases.open_demands(conn)
    )
    if not (demands or always):
        return PoolLook((), (), Rules({}), PoolRules({}, [], {}))
    supply, stored = leases.supply(conn), pool_rules.rules(conn)
    free = tuple(_free(device, supply) for device in supply.free)
    limits = {(quota.project, quota.pool): quota.devices for quota in stored.quotas}
    memory = leased_memory.left(conn)
    rules = Rules(
        supply.capacity, stored.bindings, limits, stored.held, stored.weights, stored.now, memory, supply.hosts
    )
    read = always or any(not demand.extra for demand in demands)
    return PoolLook(demands, free, rules, stored, _surplus(conn, supply) if read else ())


def _free(device: DeviceRow, supply: Supply) -> FreeDevice:
    """Describe a device as the arbiter knows it."""
    room = leased_memory.room_of(device.kind, device.node, device.id)
    engines = supply.engines.get(device.node)
    return FreeDevice(device.id, device.node, device.pool, engines, room, device.kind, device.whole)


def _surplus(conn: Connection, supply: Supply) -> tuple[SurplusEngine, ...]:
    """Describe the engines that could leave, but for those whose devices could serve nobody else now."""
    return tuple(
        SurplusEngine(
            run_id=row.run_id,
            lease_id=row.lease_id,
            devices=tuple(_free(supply.leased[one], supply) for one in row.devices),
            project=row.project,
            priority=row.priority,
            memory=row.memory_bytes,
        )
        for row in surplus(conn)
        if all(one in supply.leased for one in row.devices)
    )
