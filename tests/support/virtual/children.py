"""Engines, trainers and rollout workers that take commands from the virtual store and answer after a declared time.

Each is a process: it may die (nothing of it is left), be stopped for a while (everything it was doing happens later,
under tokens and leases that may have passed to somebody else), and it keeps the refusals of the real one.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin, SampleRef, TrainStats
from tests.support.virtual.reports import REPORT_S, Reports
from tests.support.virtual.store import PromiseBroken, Refused, TokenLost

KEPT_VERSIONS = 2
"""Versions of a policy that an engine serves at once."""

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
            mine = c.COMMAND_KINDS[row.command.kind].route is c.Route.NODE and row.command.lease_id == self.lease_id
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
            "unload_policy": durations.unload,
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
        self.holds: dict[str, list[int]] = {}
        """Policy -> the last versions that were loaded, newest last."""

    def carry_out(self, no: int, token: int, command: c.Command) -> None:
        if isinstance(command, c.UnloadPolicy):
            self._unload(no, token, command)
            return
        assert isinstance(command, c.LoadWeights), f"an engine cannot do {command.kind}"
        self.world.store.guard(no, token)
        if self.world.store.versions[command.policy][command.version] != command.digest:
            raise PromiseBroken(f"{command.policy} {command.version} is asked for under a foreign digest")
        held = self.holds.setdefault(command.policy, [])
        if command.version not in held:
            stays = [version for version in held if version in command.keeps][-1:]
            held[:] = [version for version in held if version not in stays] + stays
            held.append(command.version)
            for gone in held[:-KEPT_VERSIONS]:
                held.remove(gone)
                self.world.check_pins(command.policy, gone)
        served = e.WeightsServed(
            lease_id=self.lease_id,
            incarnation=self.name,
            policy=command.policy,
            version=command.version,
            digest=command.digest,
            keeps=command.keeps,
            command_no=no,
            seconds=self.world.dice.durations.load,
        )
        self.told(no, token, f"served:{no}:{token}", served)
        self._fits()

    def _unload(self, no: int, token: int, command: c.UnloadPolicy) -> None:
        self.world.store.guard(no, token)
        self.holds.pop(command.policy, None)
        unloaded = e.PolicyUnloaded(
            lease_id=self.lease_id, incarnation=self.name, policy=command.policy, command_no=no, seconds=0.01
        )
        self.told(no, token, f"unloaded:{no}:{token}", unloaded)

    def _fits(self) -> None:
        """No engine is told to hold more than it can."""
        places = self.world.core.plan.engines.places
        if places is not None and len(self.holds) > places:
            raise PromiseBroken(f"{self.name} has {places} places and holds {sorted(self.holds)}")


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
            self.world.store.reopen(no)  # the gradient is in, and its transaction was lost
            return
        stats = TrainStats(rows=len(row.keys), tokens=int(z), z=z, loss_sum=1.0, entropy_sum=2.0)
        done = e.MicroBatchAccumulated(
            policy=command.policy, micro_batch=command.micro_batch, accumulator=command.accumulator, stats=stats
        )
        self.told(no, token, f"accumulated:{command.policy}:{command.micro_batch}:{accumulator}:{no}", done)

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

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.asks: dict[tuple[int, int], tuple[str, bool]] = {}
        """(command, draw) -> policy of its turn, and whether an engine was found for it."""
        self._reports = Reports()
        if world.core.plan.engines.places is not None:
            self.then(REPORT_S, self._report)

    def _report(self) -> None:
        """Tell what is asked for, as the real worker does: on change, and again before it counts no more."""
        if self._reports.tell(self.name, self.asks, self.world.clock.now, self.world.store):
            self.world.wake()
        self.then(REPORT_S, self._report)

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
            self._turn(_Playing(no, token, command, group, turns))

    def _turn(self, playing: "_Playing") -> None:
        """Ask an engine for the next turn; without one that holds the weights, ask again."""
        asks = playing.no, playing.group.draw
        if not playing.left:
            self.asks.pop(asks, None)
            self._settle(playing)
            return
        policies = sorted(playing.command.pins)
        policy = policies[playing.left % len(policies)]
        version = self._version(playing.command, policy)
        served = self.world.serves(policy, version)
        self.asks[asks] = policy, served
        if served:
            playing.used.setdefault(policy, []).append(version)
            playing.left -= 1
        else:
            self.world.store.ledger.refusals.append(policy)
        self.then(
            self.world.dice.took(self.world.dice.durations.turn),
            lambda: self._turn_if_wanted(playing),
        )

    def _version(self, command: c.PlayGroups, policy: str) -> int:
        """Return the version that the next turn names: the pinned one, or the newest where replies may follow."""
        pinned = command.pins[policy].version
        if policy not in command.follows:
            return pinned
        held = [version for engine in self.world.engines() for version in engine.holds.get(policy, [])]
        return max([pinned, *held])

    def _turn_if_wanted(self, playing: "_Playing") -> None:
        try:
            self.world.store.guard(playing.no, playing.token)
        except TokenLost:  # then somebody else plays it, or nobody wants it
            self.asks.pop((playing.no, playing.group.draw), None)
        else:
            self._turn(playing)

    def _settle(self, playing: "_Playing") -> None:
        command, now = playing.command, self.world.clock.now
        event = e.GroupSettled(
            draw=playing.group.draw,
            origin=command.origin,
            epoch=command.epoch,
            command_no=playing.no,
            episodes=tuple(self._episode(playing, member) for member in range(playing.group.members)),
            started_at=now,
            finished_at=now,
            versions={name: pin.version for name, pin in command.pins.items()},
        )
        oldest = {name: min(playing.used.get(name, [pin.version])) for name, pin in command.pins.items()}
        with suppress(TokenLost):  # then the same draw is played by somebody else
            self.world.store.settle(playing.no, playing.token, event, oldest)
            if all(one.draw in self.world.store.groups for one in command.groups):
                self._done(playing.no, playing.token)
            self.world.wake()

    def _done(self, no: int, token: int) -> None:
        self.world.store.finish(no, token)

    def _episode(self, playing: "_Playing", member: int) -> EpisodeOutcome:
        command = playing.command
        dice = self.world.dice.of("episode", playing.group.draw, member)
        fails = self.world.chances.get("episode", 0.0)
        enough = playing.group.enough
        if enough and member >= enough and dice.random() < 0.8:
            reason = f"rollout: {enough} members of its group had finished"
            return EpisodeOutcome(member=member, attempt=1, status=EpisodeStatus.CANCELLED, reason=reason)
        if command.origin is Origin.TRAIN and dice.random() < fails:
            return EpisodeOutcome(member=member, attempt=2, status=EpisodeStatus.FAILED, reason="environment: step")
        score = dice.choice((0.0, 0.5, 1.0))
        samples = tuple(
            self._sample(playing, role, turn, dice.randint(1, 9), score)
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

    def _sample(self, playing: "_Playing", role: str, turn: int, tokens: int, reward: float) -> SampleRef:
        """Make a row; its tokens are spread over the versions that answered."""
        policy = self.world.spec.policy_of(role)
        versions = sorted(set(playing.used.get(policy, [])))
        segments: tuple[int, ...] = ()
        if versions and versions != [playing.command.pins[policy].version]:
            made = versions[:tokens]
            counts = [1] * (len(made) - 1)
            counts.append(tokens - len(counts))
            segments = tuple(n for pair in zip(made, counts, strict=True) for n in pair)
        return SampleRef(role=role, turn=turn, tokens=tokens, reward=reward, segments=segments)


@dataclass
class _Playing:
    """A group in a worker's hands."""

    no: int
    token: int
    command: c.PlayGroups
    group: c.GroupOrder
    left: int
    """Turns."""
    used: dict[str, list[int]] = field(default_factory=dict)
    """Policy -> versions that answered."""
