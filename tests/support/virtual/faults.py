"""What may happen to a world: deaths, absences, drains, repetitions. Every fault names its victim by a number, which
counts around whatever is there, so that a fault never misses for want of a victim."""

from flexmarl.contracts import events as e
from tests.support.virtual.children import Child, RolloutWorker
from tests.support.virtual.store import LeaseRow
from tests.support.virtual.world import Node, World


def _children(world: World) -> list[tuple[Node, Child]]:
    return [(node, child) for node in world.nodes.values() for child in node.children.values()]


def kill_child(world: World, which: int) -> None:
    """A child dies; its node sees it and starts the next life."""
    there = [(node, child) for node, child in _children(world) if node.responsive]
    if there:
        node, child = there[which % len(there)]
        world.start(node, world.store.leases[child.lease_id])


def stop_child(world: World, which: int, seconds: float) -> None:
    """A child stands still and goes on later, as if nothing had been."""
    there = _children(world)
    if there:
        there[which % len(there)][1].stop(seconds)


def cut_off(world: World, which: int, seconds: float) -> None:
    """A node reaches nothing for a while; its children live on."""
    list(world.nodes.values())[which % len(world.nodes)].stop(seconds)


def restart_node(world: World, which: int) -> None:
    """A node dies with everything on it and comes back."""
    node = list(world.nodes.values())[which % len(world.nodes)]
    for lease in list(world.leased().values()):
        if lease.node == node.name:
            world.end_child(node, lease, "its node started anew")
            if lease.state == "held":
                world.start(node, lease)


def join(world: World) -> None:
    """Another host registers."""
    if len(world.nodes) < 5:
        name = f"node{len(world.nodes)}"
        world.nodes[name] = Node(world, name, 2)


def leave(world: World, which: int) -> None:
    """An administrator drains a host: nothing new on it, and what is there is wanted back."""
    node = list(world.nodes.values())[which % len(world.nodes)]
    node.cordoned = True
    _recall(world, node, withdrawn=False)


def come_back(world: World) -> None:
    """Every drained host may be used again."""
    for node in world.nodes.values():
        if node.cordoned:
            node.cordoned = False
            _recall(world, node, withdrawn=True)


def _recall(world: World, node: Node, withdrawn: bool) -> None:
    for lease in world.leased().values():
        if lease.node == node.name:
            recalled = e.LeaseRecalled(lease_id=lease.lease_id, reason="the host is drained", withdrawn=withdrawn)
            world.store.put(f"recalled:{lease.lease_id}:{world.clock.now}:{withdrawn}", recalled)
            world.wake()


def end_lease(world: World, which: int) -> None:
    """A device is gone for good."""
    there: list[LeaseRow] = list(world.leased().values())
    if there:
        world.end_lease(there[which % len(there)], "the device is gone")


def kill_rollout(world: World, which: int) -> None:
    """A rollout worker dies with all it was playing; another one starts."""
    place = which % len(world.workers)
    world.workers[place].alive = False
    world.workers[place] = RolloutWorker(world, f"{world.workers[place].name}'")


def stop_rollout(world: World, which: int, seconds: float) -> None:
    """A rollout worker stands still and goes on later, under a token that may be another's."""
    world.workers[which % len(world.workers)].stop(seconds)


def lose_hints(world: World, seconds: float) -> None:
    """The broker and every notification are lost for a while."""

    def heard() -> None:
        world.deaf = False

    world.deaf = True
    world.clock.after(seconds, heard)


def repeat_fact(world: World, which: int) -> None:
    """A fact that was handled is told again, past every guard of the store."""
    told = [event for event, _ in world.log.entries if not isinstance(event, e.RunVerb | e.LeaseRecalled)]
    if told:
        number = len(world.log.entries)
        world.store.put(f"again:{number}:{which}", told[which % len(told)])
        world.wake()


def heal(world: World) -> None:
    """Let every fault be over: what is left is fair."""
    world.chances = {}
    world.deaf, world.away_until = False, 0.0
    come_back(world)
    for process in (*world.nodes.values(), *world.workers, *(child for _, child in _children(world))):
        process.stopped_until = 0.0
