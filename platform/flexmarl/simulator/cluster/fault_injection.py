"""The faults of a scenario at their moments: what they do to children, hosts, devices and rollout workers.

Invariants: chance of a fault belongs to its device and number, never to what a run decides; a device that is gone is
out of its pool before its leases end.
"""

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.simulator.cluster.cluster import Cluster
from flexmarl.simulator.cluster.hosting import SimulatedChild
from flexmarl.simulator.cluster.pool import PoolDevice
from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.faults import NodeLoss, WorkerLoss
from flexmarl.simulator.scenarios.scenario import Scenario

_WORKER = 31


def devices_of(scenario: Scenario) -> list[PoolDevice]:
    """List the devices of a run that has its pools for itself: those of engines, spares, those of trainers."""
    resources, faults = scenario.spec.resources, scenario.faults
    pools = [resources.rollout_pool] * (resources.most_rollout_devices + faults.spares)
    pools += [resources.training_pool] * (scenario.devices - len(pools))
    return [virtual_device(number, pool, faults.node_devices) for number, pool in enumerate(pools)]


def virtual_device(number: int, pool: str, node_devices: int) -> PoolDevice:
    """Make a device; hosts are filled one after the other."""
    node = f"virtual{number // node_devices:03d}" if node_devices else "virtual"
    return PoolDevice(f"{node}.{number:04d}", node, pool, number)


class FaultInjector:
    def __init__(self, scenario: Scenario, cluster: Cluster) -> None:
        self._faults, self._seed = scenario.faults, scenario.seed
        self._cluster, self._clock, self._hosting = cluster, cluster.clock, cluster.hosting
        self._pool = cluster.pool
        self._rollout = scenario.spec.resources.most_rollout_devices + scenario.faults.spares
        self._new = len(self._pool.devices)

    def begin(self) -> None:
        """Let everything happen when it is due."""
        faults, clock = self._faults, self._clock
        for child in faults.children:
            clock.at(child.at, self._lose_child, child.device)
        for node in faults.nodes:
            clock.at(node.at, self._lose_node, node)
        for slow in faults.slow:
            clock.at(slow.since, self._hosting.pace)
            if slow.until < float("inf"):
                clock.at(slow.until, self._hosting.pace)
        for spot in faults.spot:
            clock.at(spot.at, self._capacity, spot.devices)
        for worker in faults.workers:
            clock.at(worker.at, self._lose_worker, worker)
        if faults.rates:
            for device in list(self._pool.devices.values()):
                for use in e.DeviceUse:
                    self._next_loss(device, use, 0)

    def _on(self, device: PoolDevice) -> list[SimulatedChild]:
        return [child for child in self._hosting.children.values() if device in child.devices]

    def _numbered(self, number: int) -> list[PoolDevice]:
        return [device for device in self._pool.devices.values() if device.number == number]

    def _lose_child(self, number: int) -> None:
        for device in self._numbered(number):
            for child in self._on(device):
                if child.life:
                    self._hosting.lose(child, "child")

    def _next_loss(self, device: PoolDevice, use: e.DeviceUse, number: int) -> None:
        after = self._faults.losses(use, device.number, self._seed, number)
        if after is not None:
            self._clock.after(after, self._by_chance, device, use, number)

    def _by_chance(self, device: PoolDevice, use: e.DeviceUse, number: int) -> None:
        for child in self._on(device):
            if child.use is use and child.life:
                self._hosting.lose(child, "child")
        if not self._cluster.driver.ended:
            self._next_loss(device, use, number + 1)

    def _lose_node(self, loss: NodeLoss) -> None:
        """A host goes: its leases expire, and end when it is declared gone; or it comes back and goes on with them."""
        names = sorted({device.node for device in self._pool.devices.values()})
        devices = [device for device in self._pool.devices.values() if device.node == names[loss.node]]
        for device in devices:
            self._pool.lose(device)
            for child in self._on(device):
                child.cut_off = True
                self._hosting.lose(child, "node", told_after=self._faults.detect, again=None)
        if loss.back is not None:
            self._clock.after(loss.back, self._node_back, devices)
            return
        self._clock.after(self._faults.declare, self._declared, devices)
        self._replaced(devices)

    def _node_back(self, devices: list[PoolDevice]) -> None:
        for device in devices:
            self._pool.lose(device, gone=False)
            for child in self._on(device):
                self._hosting.come_back(child)

    def _declared(self, devices: list[PoolDevice]) -> None:
        for device in devices:
            for child in self._on(device):
                self._hosting.take_away(child, "node")

    def _replaced(self, devices: list[PoolDevice]) -> None:
        """Let new devices come for those that are gone for good."""
        after = self._faults.replace
        for device in devices if after is not None else ():
            assert after is not None
            number, self._new = self._new, self._new + 1
            new = virtual_device(number, device.pool, self._faults.node_devices)
            self._clock.after(after, self._pool.add, new)

    def _capacity(self, wanted: int) -> None:
        """Take devices away, free ones first, then those leased last; or bring some back."""
        spot = [device for device in self._pool.devices.values() if device.number < self._rollout]
        there = [device for device in spot if not device.gone]
        taken = sorted(there, key=lambda device: (max(device.leases, default=0), device.number), reverse=True)
        free = [device for device in taken if not device.leases]
        for device in [*free, *(device for device in taken if device.leases)][: max(0, len(there) - wanted)]:
            self._preempt(device)
        for device in [device for device in spot if device.gone][: max(0, wanted - len(there))]:
            self._pool.lose(device, gone=False)

    def _preempt(self, device: PoolDevice) -> None:
        self._pool.lose(device)
        for child in self._on(device):
            self._cluster.told(e.LeaseRecalled(lease_id=child.lease_id, reason="its device is preempted"))
            self._clock.after(self._faults.notice, self._hosting.take_away, child, "preempted")

    def _lose_worker(self, loss: WorkerLoss) -> None:
        """Break off what a share of the commands plays; whoever takes them next begins their open groups anew."""
        key = chance.mixed(chance.mixed(0, self._seed), _WORKER)
        for no in self._cluster.playing.open_commands():
            if chance.uniform(key, no) < loss.share:
                left, tokens = self._cluster.playing.break_off(no)
                self._hosting.losses.replayed_tokens += tokens
                if left is not None:
                    self._clock.after(loss.again, self._play_again, no, left)

    def _play_again(self, no: int, command: c.PlayGroups) -> None:
        self._cluster.play(no, command)
