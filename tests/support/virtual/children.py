"""Engines, trainers and rollout workers that take commands from the virtual store and answer after a declared time.

Each is a process: it may die (nothing of it is left), be stopped for a while (everything it was doing happens later,
under tokens and leases that may have passed to somebody else), and it keeps the refusals of the real one.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin, SampleRef, TrainStats
from tests.support.virtual.store import PromiseBroken, Refused, TokenLost

if TYPE_CHECKING:
    from tests.support.virtual.world import World


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Process:
    """What dies, stops and goes on. `then` is the only way in which a process does something later."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.alive, self.stopped_until = True, 0.0

    @property
    def responsive(self) -> bool:
        return self.alive and self.stopped_until <= self.world.clock.now

    def then(self, delay: float, action: Callable[[], None]) -> None:
        """Do something after `delay` seconds of running."""

        def later() -> None:
            left = self.stopped_until - self.world.clock.now
            if self.alive and left > 0:
                self.world.clock.after(left, later)
            elif self.alive:
                action()

        self.world.clock.after(delay, later)

    def stop(self, seconds: float) -> None:
        """Stand still: the process does not know it."""
        self.stopped_until = max(self.stopped_until, self.world.clock.now + seconds)


class Child(Process):
    """A process on a leased device. It takes its lease's commands one after the other, oldest first."""

    def __init__(self, world: "World", name: str, lease_id: int) -> None:
        super().__init__(world, name)
        self.lease_id = lease_id
        self.busy = False

    def look(self) -> None:
        """Take the next command, if there is one and nothing is under way."""
        if self.busy or not self.responsive:
            return
        store = self.world.store
        for row in list(store.commands.values()):
            mine = c.ROUTES[row.command.kind] is c.Route.NODE and row.command.lease_id == self.lease_id
            if not mine:
                continue
            token = store.take(row.no, self)
            if token is not None:
                self.busy = True
                self.world.expires(row.no, token)
                self.then(self.took(row.command), lambda no=row.no, token=token: self._work(no, token))
                return

    def took(self, command: c.Command) -> float:
        durations = self.world.dice.durations
        medians = {
            "accumulate": durations.accumulate,
            "optimizer_step": durations.step,
            "load_weights": durations.load,
            "bind_policy": durations.bind,
            "write_checkpoint": durations.checkpoint,
        }
        return self.world.dice.took(medians[command.kind])

    def _work(self, no: int, token: int) -> None:
        self.busy = False
        try:
            if self.world.breaks("refused"):
                raise Refused("busy")
            self.carry_out(no, token, self.world.store.commands[no].command)
        except Refused as error:
            self._refuse(no, token, error.code)
        except TokenLost:
            pass  # what was done is of no use to anybody; the child goes on with what is asked of it now
        self.look()

    def _refuse(self, no: int, token: int, code: str) -> None:
        with suppress(TokenLost):  # then nobody waits for the answer
            self.world.store.fail(no, token, code, retryable=True)
        self.world.wake()

    def carry_out(self, no: int, token: int, command: c.Command) -> None:
        raise NotImplementedError

    def told(self, no: int, token: int, key: str, event: e.Event) -> None:
        """Write a fact and the end of its command, in one transaction."""
        self.world.store.serving(self.lease_id, self.name)
        self.world.store.finish(no, token)
        self.world.store.put(key, event)
        self.world.wake()


class Engine(Child):
    def __init__(self, world: "World", name: str, lease_id: int) -> None:
        super().__init__(world, name, lease_id)
        self.holds: dict[str, int] = {}

    def carry_out(self, no: int, token: int, command: c.Command) -> None:
        assert isinstance(command, c.LoadWeights), f"an engine cannot do {command.kind}"
        self.world.store.guard(no, token)
        if self.world.store.versions[command.policy][command.version] != command.digest:
            raise PromiseBroken(f"{command.policy} {command.version} is asked for under a foreign digest")
        before = self.holds.get(command.policy)
        # Versions only grow, so an engine never goes back: a late load of an older one changes nothing.
        self.holds[command.policy] = max(command.version, -1 if before is None else before)
        if before is not None and before < command.version:
            self.world.check_pins(command.policy, before)
        served = e.WeightsServed(
            lease_id=self.lease_id,
            incarnation=self.name,
            policy=command.policy,
            version=command.version,
            digest=command.digest,
        )
        self.told(no, token, f"served:{no}:{token}", served)


class Trainer(Child):
    def __init__(self, world: "World", name: str, lease_id: int) -> None:
        super().__init__(world, name, lease_id)
        self.holds: dict[str, tuple[str, dict[int, float]]] = {}
        """Policy -> epoch of its accumulator, and the Z of every micro-batch in it."""

    def carry_out(self, no: int, token: int, command: c.Command) -> None:
        routes = {
            "bind_policy": self._bind,
            "accumulate": self._accumulate,
            "optimizer_step": self._step,
            "write_checkpoint": self._checkpoint,
        }
        assert command.kind in routes, f"a trainer cannot do {command.kind}"
        routes[command.kind](no, token, command)

    def _bind(self, no: int, token: int, command: c.BindPolicy) -> None:
        store = self.world.store
        store.guard(no, token)
        store.serving(self.lease_id, self.name)
        history = store.versions.setdefault(command.policy, [])
        if not history:
            history.append(digest(command.policy, 0))
        version = command.version or 0
        if version != len(history) - 1:
            raise Refused("version_differs")
        self.holds[command.policy] = (f"{version}:{self.name}", {})
        bound = e.PolicyBound(
            lease_id=self.lease_id,
            incarnation=self.name,
            policy=command.policy,
            version=version,
            digest=history[version],
            created=command.version is None,
        )
        self.told(no, token, f"bound:{no}:{token}", bound)

    def _accumulate(self, no: int, token: int, command: c.Accumulate) -> None:
        accumulator, held = self.holds.get(command.policy, ("", {}))
        if accumulator != command.accumulator:
            raise Refused("accumulator_differs")
        row = self.world.store.micro_batches[command.policy, command.micro_batch]
        z = self.world.store.z_of(row)
        held[command.micro_batch] = z  # a repetition finds it there and adds nothing
        if self.world.breaks("uncommitted"):
            return
        stats = TrainStats(rows=len(row.keys), tokens=int(z), z=z, loss_sum=1.0, entropy_sum=2.0)
        done = e.MicroBatchAccumulated(
            policy=command.policy, micro_batch=command.micro_batch, accumulator=command.accumulator, stats=stats
        )
        self.told(no, token, f"accumulated:{command.policy}:{command.micro_batch}:{accumulator}", done)

    def _step(self, no: int, token: int, command: c.OptimizerStep) -> None:
        accumulator, held = self.holds.get(command.policy, ("", {}))
        if accumulator != command.accumulator or sorted(held) != sorted(command.micro_batches):
            raise Refused("accumulator_differs")
        self.holds[command.policy] = ("", {})
        made = digest(command.policy, command.next_version, self.name, token)
        self.world.store.commit_step(no, token, self.name, held, made)
        self.holds[command.policy] = (f"{command.next_version}:{self.name}", {})
        self.world.wake()

    def _checkpoint(self, no: int, token: int, command: c.WriteCheckpoint) -> None:
        for policy, pin in command.pins.items():
            if self.world.store.versions[policy][pin.version] != pin.digest:
                raise PromiseBroken(f"a checkpoint of {policy} {pin.version} under a foreign digest")
        written = e.CheckpointWritten(label=command.label, step=command.step, versions={}, path="/tmp/x", bytes=1)
        self.told(no, token, f"checkpoint:{no}:{token}", written)


class RolloutWorker(Process):
    """Plays the groups of its commands at once; every turn needs an engine that wholly holds the pinned version."""

    def look(self) -> None:
        for row in list(self.world.store.commands.values()):
            if not isinstance(row.command, c.PlayGroups) or not self.responsive:
                continue
            token = self.world.store.take(row.no, self)
            if token is not None:
                self.world.expires(row.no, token)
                self._play(row.no, token, row.command)

    def _play(self, no: int, token: int, command: c.PlayGroups) -> None:
        left = [group for group in command.groups if group.draw not in self.world.store.groups]
        if not left:
            self._done(no, token)
        for group in left:
            turns = self.world.dice.of("turns", group.draw).randint(1, 3) * len(command.pins)
            self._turn(no, token, command, group, turns)

    def _turn(self, no: int, token: int, command: c.PlayGroups, group: c.GroupOrder, left: int) -> None:
        """Ask an engine for the next turn; without one that holds the weights, ask again."""
        policies = sorted(command.pins)
        policy = policies[left % len(policies)]
        if left and self.world.serves(policy, command.pins[policy].version):
            left -= 1
        elif left:
            self.world.store.ledger.refusals.append(policy)
        elif self._settle(no, token, command, group):
            return
        self.then(
            self.world.dice.took(self.world.dice.durations.turn),
            lambda: self._turn_if_wanted(no, token, command, group, left),
        )

    def _turn_if_wanted(self, no: int, token: int, command: c.PlayGroups, group: c.GroupOrder, left: int) -> None:
        try:
            self.world.store.guard(no, token)
        except TokenLost:
            return
        self._turn(no, token, command, group, left)

    def _settle(self, no: int, token: int, command: c.PlayGroups, group: c.GroupOrder) -> bool:
        now = self.world.clock.now
        event = e.GroupSettled(
            draw=group.draw,
            origin=command.origin,
            epoch=command.epoch,
            command_no=no,
            episodes=tuple(self._episode(command, group, member) for member in range(group.members)),
            started_at=now,
            finished_at=now,
        )
        try:
            self.world.store.settle(no, token, event, {name: pin.version for name, pin in command.pins.items()})
        except TokenLost:
            return True
        if all(one.draw in self.world.store.groups for one in command.groups):
            self._done(no, token)
        self.world.wake()
        return True

    def _done(self, no: int, token: int) -> None:
        self.world.store.finish(no, token)

    def _episode(self, command: c.PlayGroups, group: c.GroupOrder, member: int) -> EpisodeOutcome:
        dice = self.world.dice.of("episode", group.draw, member)
        fails = self.world.chances.get("episode", 0.0)
        if command.origin is Origin.TRAIN and dice.random() < fails:
            return EpisodeOutcome(member=member, attempt=2, status=EpisodeStatus.FAILED, reason="environment: step")
        score = dice.choice((0.0, 0.5, 1.0))
        samples = tuple(
            SampleRef(role=role, turn=turn, tokens=dice.randint(1, 9), reward=score)
            for role in self.world.spec.agents
            for turn in range(dice.randint(1, 2))
        )
        return EpisodeOutcome(
            member=member,
            attempt=dice.randint(1, 3),
            status=EpisodeStatus.FINISHED,
            scores=dict.fromkeys(self.world.spec.agents, score),
            team_score=score,
            solved=score == 1.0,
            samples=samples,
        )
