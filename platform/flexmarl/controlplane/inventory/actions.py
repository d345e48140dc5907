"""Changes of the hardware's administration: permission, write, audit, hint."""

from django.db import transaction

from flexmarl.controlplane.common import live
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, DuplicateName, NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory.models import Device, Pool
from flexmarl.store import cordons


@transaction.atomic
def cordon_node(actor: Actor, name: str, cordoned: bool) -> None:
    """Keep new leases off a node, or let them on again."""
    actor.require(Scope.CLUSTER_ADMIN)
    if not cordons.cordon_node(store_connection(), name, cordoned):
        raise NotFound(f"There is no node {name}.")
    record(actor, "node.cordon" if cordoned else "node.uncordon", "node", name, name)
    live.announce_on_commit(live.CLUSTER, 0)


@transaction.atomic
def cordon_device(actor: Actor, device_id: str, cordoned: bool) -> None:
    """Keep new leases off a device, or let them on again."""
    actor.require(Scope.CLUSTER_ADMIN)
    if not cordons.cordon_device(store_connection(), device_id, cordoned):
        raise NotFound(f"There is no device {device_id} that its node announces.")
    record(actor, "device.cordon" if cordoned else "device.uncordon", "device", device_id, device_id)
    live.announce_on_commit(live.CLUSTER, 0)


@transaction.atomic
def move_device(actor: Actor, device_id: str, pool: str) -> None:
    """Put a device into a pool that exists."""
    actor.require(Scope.CLUSTER_ADMIN)
    if not Pool.objects.filter(name=pool).exists():
        raise NotFound(f"There is no pool {pool}.")
    if not cordons.move_device(store_connection(), device_id, pool):
        raise NotFound(f"There is no device {device_id}.")
    record(actor, "device.move", "device", device_id, device_id, pool=pool)
    live.announce_on_commit(live.CLUSTER, 0)


@transaction.atomic
def create_pool(actor: Actor, name: str, description: str = "") -> Pool:
    """Describe a pool."""
    actor.require(Scope.CLUSTER_ADMIN)
    pool, created = Pool.objects.get_or_create(name=name, defaults={"description": description})
    if not created:
        raise DuplicateName(f"There is a pool named {name}.", extra={"existing": str(pool.id)})
    record(actor, "pool.create", "pool", pool.id, name)
    return pool


@transaction.atomic
def update_pool(actor: Actor, pool: Pool, description: str) -> Pool:
    """Change a pool's description."""
    actor.require(Scope.CLUSTER_ADMIN)
    pool.description = description
    pool.version += 1
    pool.save(update_fields=["description", "version", "updated_at"])
    record(actor, "pool.update", "pool", pool.id, pool.name)
    return pool


@transaction.atomic
def delete_pool(actor: Actor, pool: Pool) -> None:
    """Delete a pool that no device is in."""
    actor.require(Scope.CLUSTER_ADMIN)
    count = Device.objects.filter(pool=pool.name).count()
    if count:
        raise Conflict(f"{count} devices are in {pool.name}. Move them to another pool first.")
    record(actor, "pool.delete", "pool", pool.id, pool.name)
    pool.delete()
