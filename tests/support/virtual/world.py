"""A cluster under a virtual clock around the pure core: driver, nodes with devices, children, rollout workers.

Invariants: everything that happens happens at a time of the clock, with durations and chances of one seed; the only
way to the core is a fact in the store's inbox; the driver's memory may be lost at any moment, before or after a
commit, and is rebuilt from the log. After every turn the core's own invariants are checked, and the store's ledger.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.pool.arbiter import arbitrate
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules
from flexmarl.orchestrator.run.invariants import check_invariants
from flexmarl.orchestrator.run.relevance import Relevance
from tests.support.virtual.children import Child, Engine, Process, RolloutWorker, Trainer
from tests.support.virtual.clock import Clock, Dice, Durations
from tests.support.virtual.store import CommandRow, CommandStatus, LeaseRow, PromiseBroken, TokenLost, VirtualStore

BATCH = 256
POLL_S = 0.2


class Node(Process):
    """A host. While it is cut off its children live on, and their leases run out."""

    def __init__(self, world: "World", name: str, devices: int) -> None:
        super().__init__(world, name)
        self.devices = [f"{name}.cpu{i}" for i in range(devices)]
        self.children: dict[int, Child] = {}
        self.hosting: dict[int, tuple[int, int]] = {}
        """Lease -> number and token of its command."""
        self.cordoned = False


class _LooksAtEverything(Relevance):
    """A core with it takes no short way."""

    def seen_to(self, ctx: Context, event: object) -> bool:
        return False


@dataclass
class Log:
    entries: list[tuple[e.Event, float]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    snapshot: bytes | None = None
    snapshot_at: int = 0


class World:
    def __init__(
        self,
        spec: ExperimentSpec,
        seed: int = 0,
        chances: dict[str, float] | None = None,
        durations: Durations | None = None,
        nodes: int = 2,
        workers: int = 2,
    ) -> None:
        self.spec, self.clock = spec, Clock()
        self.dice = Dice(seed, durations or Durations())
        self.chances = chances or {}
        self.store, self.log = VirtualStore(spec), Log()
        self.core = Orchestrator(spec)
        self.deadline: float | None = None
        self.nodes = {name: Node(self, name, 2) for name in (f"node{i}" for i in range(nodes))}
        self.workers = [RolloutWorker(self, f"rollout{i}") for i in range(workers)]
        self.deaf = False
        """Hints are lost: whoever waits for one finds out by looking."""
        self.away_until = 0.0
        """No driver holds the run before."""
        self._lives = 0
        self._turn_due = False
        self._asked = 0
        self.clock.after(POLL_S, self._poll)

    # -- chances and waiting ----------------------------------------------------------------------------------------
    def breaks(self, what: str) -> bool:
        return self.dice.random.random() < self.chances.get(what, 0.0)

    @property
    def status(self) -> RunStatus:
        return self.core.state.lifecycle.status

    def run(self, done: Callable[["World"], bool] | None = None, seconds: float = 600.0) -> "World":
        """Let time pass until the run has ended, or a condition holds."""
        reached = self.clock.until(lambda: (done or (lambda w: w.status in TERMINAL))(self), seconds)
        assert reached, f"no progress while {self.status}: waits for {self.core.progress().waiting_for}, {self.open()}"
        return self

    def open(self) -> list[str]:
        """Name the commands that are not answered."""
        waiting = (CommandStatus.OPEN, CommandStatus.TAKEN)
        return [f"{x.no}:{x.command.kind}:{x.status}" for x in self.store.commands.values() if x.status in waiting]

    def ask(self, verb: e.Verb, **options: object) -> str:
        """Ask for something as a person does; returns the operation."""
        self._asked += 1
        operation = f"op-{self._asked}"
        asked = e.RunVerb.model_validate({"verb": verb, "actor": "ada", "operation": operation, **options})
        self.store.put(f"verb:{operation}", asked)
        self.wake()
        return operation

    # -- driver -----------------------------------------------------------------------------------------------------
    def wake(self) -> None:
        """Hint the driver."""
        if not self._turn_due and not self.deaf:
            self._turn_due = True
            self.clock.after(self.dice.took(self.dice.durations.driver), self.turn)

    def turn(self) -> None:
        """Take what is told, in any order, and commit what follows from it."""
        self._turn_due = False
        if self.clock.now < self.away_until:
            return
        facts = self._take()
        decided = [self._handle(event) for _, event in facts]
        for (key, event), decision in zip(facts, decided, strict=True):
            del self.store.inbox[key]
            self.store.handled.add(key)
            self.log.entries.append((event, self.clock.now))
            self.log.decisions.append(decision)
            self._announce(self.store.commit_decision(decision))
        if facts:
            self.deadline = decided[-1].deadline
            self.audit()
        if facts and self.deadline is not None:
            self.clock.after(self.deadline - self.clock.now, self.turn)

    def _take(self) -> list[tuple[str, e.Event]]:
        if self.deadline is not None and self.clock.now >= self.deadline:
            self.store.put(f"timer:{len(self.log.entries)}", e.TimerFired())
        facts = list(self.store.inbox.items())
        # Verbs keep their place at the end: whoever asks has seen what was told before.
        told = [fact for fact in facts if not isinstance(fact[1], e.RunVerb)]
        self.dice.random.shuffle(told)
        return (told + [fact for fact in facts if isinstance(fact[1], e.RunVerb)])[:BATCH]

    def _handle(self, event: e.Event) -> Decision:
        decision = self.core.handle(event, self.clock.now)
        check_invariants(self.core.plan, self.core.state)
        return decision

    def _announce(self, fresh: list[object]) -> None:
        if fresh and not self.deaf:
            self.clock.after(self.dice.took(self.dice.durations.hint), self.look)

    def lose_driver(self, before_commit: bool = False) -> None:
        """The driver dies, perhaps after it decided and before it committed; another one takes over."""
        if before_commit:
            for _, event in self._take():
                self._handle(event)
        log = self.log
        spare = Orchestrator(self.spec) if log.snapshot is None else Orchestrator.restore(self.spec, log.snapshot)
        for (event, at), decision in zip(log.entries[log.snapshot_at :], log.decisions[log.snapshot_at :], strict=True):
            if spare.handle(event, at) != decision:
                raise PromiseBroken(f"the same log gave another decision on {event.kind}")
        if not before_commit and spare.snapshot() != self.core.snapshot():
            raise PromiseBroken("the same log gave another state")
        self.core = spare

    def save(self) -> None:
        """Write a snapshot, as the driver does from time to time."""
        self.log.snapshot, self.log.snapshot_at = self.core.snapshot(), len(self.log.entries)

    def replay(self) -> None:
        """Hold the whole log against a core that starts from nothing."""
        self.log.snapshot, self.log.snapshot_at = None, 0
        self.lose_driver()
        careful = Orchestrator(self.spec)
        careful._relevance = _LooksAtEverything()
        for (event, at), decision in zip(self.log.entries, self.log.decisions, strict=True):
            if careful.handle(event, at) != decision:
                raise PromiseBroken(f"a short way decided otherwise than a look at everything on {event.kind}")

    # -- what looks from time to time -------------------------------------------------------------------------------
    def _poll(self) -> None:
        """Whatever hint was lost: everybody looks."""
        self.look()
        if not self._turn_due:
            self.turn()
        self.clock.after(POLL_S, self._poll)

    def look(self) -> None:
        """Let every process take what is open for it."""
        self._grant()
        for node in self.nodes.values():
            if node.responsive:
                self._host(node)
                for child in node.children.values():
                    child.look()
        for worker in self.dice.random.sample(self.workers, len(self.workers)):
            worker.look()

    def expires(self, no: int, token: int) -> None:
        """Reopen a command whose holder stops renewing its token."""

        def judge() -> None:
            row = self.store.commands[no]
            if row.status is not CommandStatus.TAKEN or row.token != token:
                return
            if row.holder is not None and row.holder.responsive:
                self.expires(no, token)
            else:
                self.store.reopen(no)
                self.clock.after(self.dice.durations.resend, self.look)

        self.clock.after(self.dice.durations.ttl, judge)

    # -- devices ----------------------------------------------------------------------------------------------------
    def leased(self) -> dict[str, LeaseRow]:
        return {lease.device_id: lease for lease in self.store.leases.values() if lease.state != "ended"}

    def _of_kind(self, kind: str) -> list[CommandRow]:
        rows = self.store.commands.values()
        return [row for row in rows if row.command.kind == kind and row.status is CommandStatus.OPEN]

    def _demand(self, no: int, asked: c.RequestDevices) -> DeviceDemand:
        return DeviceDemand(
            1, no, asked.pool, asked.engines, asked.trainer_pool, asked.trainers, since=no, extra=asked.extra
        )

    def _grant(self) -> None:
        """Carry out the driver's own commands: grants and releases."""
        for row in self._of_kind("release_lease"):
            row.status = CommandStatus.DONE
            lease = self.store.leases[row.command.lease_id]
            lease.state = "releasing" if lease.state == "held" else lease.state
        leased = self.leased()
        free = [
            FreeDevice(device, node.name, "default")
            for node in self.nodes.values()
            if node.responsive and not node.cordoned
            for device in node.devices
            if device not in leased
        ]
        demands = [self._demand(x.no, x.command) for x in self._of_kind("request_devices")]
        for grant in arbitrate(demands, free, Rules({"default": 2 * len(self.nodes)})).grants:
            self.store.commands[grant.command_no].status = CommandStatus.DONE
            made = []
            for placement in grant.placements:
                number = len(self.store.leases) + 1
                node = placement.device_id.partition(".")[0]
                self.store.leases[number] = LeaseRow(number, placement.device_id, node, placement.use)
                made.append(e.GrantedDevice(lease_id=number, device_id=placement.device_id, use=placement.use))
            granted = e.DevicesGranted(leases=tuple(made), command_no=grant.command_no)
            self.store.put(f"granted:{grant.command_no}", granted)
            self.wake()

    def _host(self, node: Node) -> None:
        """Start what is to live on a node, end what is to end."""
        for row in self._of_kind("host_lease"):
            lease = self.store.leases[row.command.lease_id]
            if lease.node == node.name and (token := self.store.take(row.no, node)) is not None:
                node.hosting[lease.lease_id] = (row.no, token)
                self.expires(row.no, token)
                self.start(node, lease)
        for lease in [lease for lease in self.leased().values() if lease.node == node.name]:
            child = node.children.get(lease.lease_id)
            if lease.state == "releasing":
                self.end_lease(lease, "released")
            elif child is not None and child.name != lease.incarnation and lease.incarnation == "":
                self.start(node, lease)  # it was counted as lost while the node was cut off

    def start(self, node: Node, lease: LeaseRow) -> None:
        """Start a child on a lease's device in the place of whatever runs there."""
        self.end_child(node, lease, "its device worker started another")

        def begin() -> None:
            if lease.state != "held" or lease.lease_id in node.children:
                return
            self._lives += 1
            make = Engine if lease.use is e.DeviceUse.ENGINE else Trainer
            child = make(self, f"life{self._lives}", lease.lease_id)
            node.children[lease.lease_id] = child
            lease.incarnation = child.name
            self.store.put(
                f"ready:{child.name}",
                e.ChildReady(lease_id=lease.lease_id, use=lease.use, incarnation=child.name),
            )
            self.wake()
            self._watch(node, lease)
            child.look()

        node.then(self.dice.took(self.dice.durations.start), begin)

    def _watch(self, node: Node, lease: LeaseRow) -> None:
        """Count a lease's child as lost when its node does not renew it."""
        incarnation = lease.incarnation

        def judge() -> None:
            if lease.incarnation != incarnation or lease.state == "ended":
                return
            if node.responsive:
                self._watch(node, lease)
            else:
                self._lost(lease, "the lease expired")

        self.clock.after(self.dice.durations.ttl, judge)

    def _lost(self, lease: LeaseRow, why: str) -> None:
        if lease.incarnation:
            lost = e.ChildLost(lease_id=lease.lease_id, incarnation=lease.incarnation, reason=why)
            self.store.put(f"lost:{lease.incarnation}", lost)
            lease.incarnation = ""
            self.wake()

    def end_child(self, node: Node, lease: LeaseRow, why: str) -> None:
        """Make sure that nothing of a lease runs."""
        child = node.children.pop(lease.lease_id, None)
        if child is not None:
            child.alive = False
        self._lost(lease, why)

    def end_lease(self, lease: LeaseRow, why: str) -> None:
        """The node has proved that nothing of the lease runs: its device is free."""
        node = self.nodes[lease.node]
        self.end_child(node, lease, why)
        lease.state = "ended"
        self.store.put(f"ended:{lease.lease_id}", e.LeaseEnded(lease_id=lease.lease_id, reason=why))
        no, token = node.hosting.pop(lease.lease_id, (0, 0))
        try:
            if no:
                self.store.finish(no, token)
        except TokenLost:
            pass  # its command was voided
        self.wake()

    # -- what is checked --------------------------------------------------------------------------------------------
    def engines(self) -> list[Engine]:
        children = [child for node in self.nodes.values() for child in node.children.values()]
        return [child for child in children if isinstance(child, Engine) and child.alive]

    def serves(self, policy: str, version: int) -> bool:
        """Tell whether an engine that may be asked wholly holds a version."""
        return any(
            version in engine.holds.get(policy, ()) and self.store.leases[engine.lease_id].incarnation == engine.name
            for engine in self.engines()
        )

    def check_pins(self, policy: str, version: int) -> None:
        """No engine lets go of weights that a group still plays with, unless another one serves them."""
        for row in self.store.commands.values():
            command = row.command
            if not isinstance(command, c.PlayGroups) or row.status is not CommandStatus.TAKEN:
                continue
            unsettled = [group.draw for group in command.groups if group.draw not in self.store.groups]
            live = row.epoch == self.store.epoch and self.status not in TERMINAL
            pinned = command.pins[policy].version == version and policy not in command.follows
            if unsettled and live and pinned and not self.serves(policy, version):
                raise PromiseBroken(f"{policy} {version} was let go while draws {unsettled} play with it")

    def audit(self) -> None:
        """Hold what the core says against what was seen."""
        state, store = self.core.state, self.store
        for name, policy in state.policies.items():
            if policy.version is not None and policy.digest != store.versions[name][policy.version]:
                raise PromiseBroken(f"the core knows {name} {policy.version} under a foreign digest")
        for cohort in state.cohorts:
            for name, own in cohort.policies.items():
                open_now = [m for m in own.micro_batches if m.accumulated and not m.applied]
                held = sum(store.z_of(store.micro_batches[name, m.no]) for m in open_now)
                if own.totals.z != held:
                    raise PromiseBroken(f"the core's Z of {name} is {own.totals.z}, its members have {held}")
