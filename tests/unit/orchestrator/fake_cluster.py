"""A whole cluster in memory around the core: children, command table, store rows, and faults by a seeded generator.

It keeps the guards that the real store and children keep: a voided command writes nothing, a trainer refuses another
accumulator, a version commits only on its parent, a group has one set of rows. Facts reach the core in random order,
some twice. It fails the test when a sample is trained twice or a step holds other micro-batches than the core named.
"""

import random

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.orchestrator import Orchestrator
from flexmarl.orchestrator.run.invariants import check_invariants
from flexmarl.orchestrator.run.lifecycle import books_due
from tests.unit.orchestrator.fake_parts import (
    Child,
    Faults,
    answered,
    applied,
    bind,
    bound,
    called_back,
    digest,
    episode,
    figures,
    granted,
    load,
    lost,
    make_spec,
    shares,
    suspend,
    suspended,
    turned,
    unload,
)

__all__ = ["FakeCluster", "Faults", "make_spec", "running", "started"]


class FakeCluster:
    def __init__(self, spec, seed=0, faults=None, round_trip=False, turns=2):
        self.spec = spec
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.round_trip = round_trip
        self.turns = turns
        self.core = Orchestrator(spec)
        self.now = 1000.0
        self.log, self.decisions = [], []
        self.inbox = []
        self.keys = set()
        """Producer keys the store has seen: a repetition is refused, however late."""
        self.open = {}
        self.voided = []
        self.children, self.uses, self.ended = {}, {}, set()
        self.next_lease = 1
        self.made_for, self.mates = {}, {}
        """Where two share a device: command -> life that it is for; lease -> the other one's."""
        self.lives = 0
        self.versions = {}
        self.groups, self.micro_batches = {}, {}
        self.accumulated_ids, self.trained = {}, {}
        self.replayed, self.replays = set(), {}
        """Micro-batches that come from the archive; row -> versions that it made again."""
        self.lags, self.lags_of = set(), {}
        self.metrics, self.notes = {}, []
        self.checkpoints = []
        self.kept, self.held = [], set()
        self.deadline = None
        self.plays = []
        self.recalls = 0
        self.grants = True
        """False: no device is free."""
        self.ended_members = {}
        """Draw -> members that ended, where episodes settle one by one."""
        self.held_draws = set()
        """Draws that nobody plays for now."""

    def tell(self, event):
        self.now += self.rng.random() * 0.01
        if self.round_trip:
            self.core = Orchestrator.restore(self.spec, self.core.snapshot())
        self.log.append((event, self.now))
        decision = self.core.handle(event, self.now)
        self.decisions.append(decision)
        check_invariants(self.core.plan, self.core.state)
        frozen = self.core.state.lifecycle.pause.frozen
        waits = books_due(self.core.state) and not frozen and self.status not in TERMINAL
        assert not waits, "a cohort that is done waits for a fact that may never come"
        self.deadline = decision.deadline
        for number in decision.void:
            if number in self.open:
                self.voided.append((number, self.open.pop(number)))
        for numbered in decision.commands:
            self.accept(numbered)
        for metric in decision.metrics:
            key = (metric.name, metric.agent, metric.stat, metric.step)
            assert key not in self.metrics, f"{key} twice"
            self.metrics[key] = metric.value
        self.notes += decision.notes
        return decision

    def accept(self, numbered):
        command = numbered.command
        if isinstance(command, c.CutMicroBatch):
            key = (command.ref.policy, command.ref.no)
            assert key not in self.micro_batches, f"{key} cut twice"
            self.micro_batches[key] = command.samples
            if command.replayed:
                self.replayed.add(key)
        elif isinstance(command, c.SuspendPolicy):
            of_it = [x.command.kind for x in self.open.values() if getattr(x.command, "policy", "") == command.policy]
            asked = set(of_it) - {"load_weights", "unload_policy", "bind_policy" if self.mates else ""}
            assert not asked, f"{command.policy} is suspended while it is asked for {asked}"
            self.open[numbered.no] = numbered
        elif isinstance(command, c.KeepCheckpoints):
            self.kept.append(command)
        elif isinstance(command, c.HoldGroups):
            (self.held.update if command.hold else self.held.difference_update)(command.commands)
        elif isinstance(command, c.ReleaseLease):
            self.children.pop(command.lease_id, None)
            self.end_lease(command.lease_id, "released")
        else:
            self.open[numbered.no] = numbered
            if self.mates and getattr(command, "lease_id", 0) in self.children:
                self.made_for[numbered.no] = self.core.state.fleet.leases[command.lease_id].child.incarnation

    def end_lease(self, lease_id, reason):
        if lease_id not in self.ended:
            self.ended.add(lease_id)
            self.children.pop(lease_id, None)
            self.put(f"ended:{lease_id}", e.LeaseEnded(lease_id=lease_id, reason=reason))

    def put(self, key, event):
        if key not in self.keys:
            self.keys.add(key)
            self.inbox.append(event)

    status = property(lambda self: self.core.state.lifecycle.status)

    def verb(self, verb):
        return self.tell(e.RunVerb(verb=verb, actor="ada"))

    def run(self, until=lambda cluster: cluster.status in TERMINAL, limit=60_000):
        """Let things happen in random order until a condition holds."""
        for _ in range(limit):
            if until(self):
                return self
            self.happen()
        raise AssertionError(f"stuck while {self.status}: waits for {self.core.progress().waiting_for}; {self.open}")

    def happen(self):
        self.break_something()
        choices = [("deliver", i) for i in range(len(self.inbox))]
        choices += [("execute", n) for n, x in self.open.items() if n not in self.held and self.possible(x.command)]
        if self.deadline is not None and self.now >= self.deadline:
            self.tell(e.TimerFired())
        elif choices:
            what, index = self.rng.choice(choices)
            self.deliver(index) if what == "deliver" else self.execute(index)
        elif self.deadline is not None:
            self.now = self.deadline
            self.tell(e.TimerFired())
        else:
            raise AssertionError(f"nothing can happen while {self.status}: {self.open}")

    def deliver(self, index):
        event = self.inbox[index]
        if self.rng.random() >= self.faults.twice:
            del self.inbox[index]
        self.tell(event)

    def break_something(self):
        rng, faults = self.rng, self.faults
        if self.children and rng.random() < faults.child_death:
            lease_id = rng.choice(sorted(self.children))
            self.put(*lost(lease_id, self.children[lease_id]))
            self.start_child(lease_id)
        if self.children and rng.random() < faults.lease_end:
            self.end_lease(rng.choice(sorted(self.children)), "device gone")
        if self.children and rng.random() < faults.recall:
            self.recall(rng.choice(sorted(self.children)), withdrawn=rng.random() < 0.3)
        if faults.surplus_recall and self.children and rng.random() < faults.surplus_recall:
            self.put(*called_back(self))
        if (own := self.core.state.outstanding.get("devices")) and rng.random() < faults.gang_recall:
            self.put(f"gang-recalled:{own.no}", e.GangRecalled(command_no=own.no, reason="others can go on"))
        if self.voided and rng.random() < faults.zombie:
            number, numbered = self.voided.pop(rng.randrange(len(self.voided)))
            child = self.children.get(getattr(numbered.command, "lease_id", -1))
            # A request reaches the life that it was made for; where that matters beyond what it names, it is told.
            if child is not None and self.made_for.get(number, child.incarnation) == child.incarnation:
                self.act(numbered.command, child, number)

    def recall(self, lease_id, withdrawn=False):
        self.recalls += 1
        told = e.LeaseRecalled(lease_id=lease_id, reason="box is drained", withdrawn=withdrawn)
        self.put(f"recalled:{self.recalls}", told)

    def start_child(self, lease_id):
        self.lives += 1
        self.children[lease_id] = child = Child(f"life{self.lives}")
        ready = e.ChildReady(lease_id=lease_id, use=self.uses[lease_id], incarnation=child.incarnation)
        self.put(f"ready:{child.incarnation}", ready)

    def possible(self, command):
        if isinstance(command, c.PlayGroups):
            if self.held_draws.intersection(g.draw for g in command.groups):
                return False
            engines = [self.children[i] for i in self.children if self.uses[i] is e.DeviceUse.ENGINE]
            return answered(command, engines, self.core.plan.engines.places)
        if isinstance(command, c.RequestDevices):
            return self.grants
        if isinstance(command, c.HostLease):
            return True
        return command.lease_id in self.children

    def act(self, command, child, number=0):
        """Do what the command says to the child itself. Returns an error code, or None."""
        refused = shares(command, child, self.children.get(self.mates.get(command.lease_id)), number)
        if refused is not None or isinstance(command, c.SleepEngine | c.WakeEngine | c.VacateTrainer):
            return refused
        if isinstance(command, c.LoadWeights | c.UnloadPolicy):
            return (load if isinstance(command, c.LoadWeights) else unload)(command, child, number)
        if isinstance(command, c.BindPolicy | c.SuspendPolicy):
            return (bind if isinstance(command, c.BindPolicy) else suspend)(self, command, child)
        if isinstance(command, c.Accumulate):
            accumulator, ids = child.trains.get(command.policy, ("", []))
            if accumulator != command.accumulator:
                return "accumulator"
            if command.micro_batch not in ids:
                ids.append(command.micro_batch)
        elif isinstance(command, c.OptimizerStep):
            accumulator, ids = child.trains.get(command.policy, ("", []))
            if accumulator == f"{command.next_version}:{child.incarnation}":
                return None
            if accumulator != command.accumulator or sorted(ids) != sorted(command.micro_batches):
                return "accumulator"
            child.trains[command.policy] = (f"{command.next_version}:{child.incarnation}", [])
        return None

    def execute(self, number):
        numbered = self.open[number]
        command = numbered.command
        if isinstance(command, c.PlayGroups):
            return self.play(number, command)
        if isinstance(command, c.RequestDevices):
            return self.grant(number, command)
        if isinstance(command, c.HostLease):
            del self.open[number]
            if command.lease_id not in self.ended:
                self.start_child(command.lease_id)
            return None
        child = self.children[command.lease_id]
        if self.rng.random() < self.faults.refused:
            return self.fail(number, command, "busy")
        error = self.act(command, child, number)
        if error:
            return self.fail(number, command, error)
        if self.rng.random() < self.faults.uncommitted:
            return None
        return self.commit(number, command, child)

    def fail(self, number, command, code, retryable=True):
        del self.open[number]
        about = {"command_no": number, "command_kind": command.kind, "retryable": retryable}
        failed = e.CommandFailed(code=code, message="refused", **about)
        self.put(f"failed:{number}:1", failed)

    def grant(self, number, command):
        del self.open[number]
        leases = granted(self, command)
        key = ",".join(str(one.lease_id) for one in leases)
        self.put(f"granted:{key}", e.DevicesGranted(leases=tuple(leases), command_no=number))

    def commit(self, number, command, child):
        if isinstance(command, c.OptimizerStep):
            return self.commit_step(number, command, child)
        del self.open[number]
        common = {"lease_id": command.lease_id, "incarnation": child.incarnation}
        if isinstance(command, c.LoadWeights):
            told = command.model_dump(include={"policy", "version", "digest", "keeps"})
            event = e.WeightsServed(**common, **told, command_no=number)
        elif isinstance(command, c.UnloadPolicy):
            event = e.PolicyUnloaded(**common, policy=command.policy, command_no=number)
        elif isinstance(command, c.SleepEngine | c.WakeEngine | c.VacateTrainer):
            event = turned(command, common, number)
        elif isinstance(command, c.BindPolicy):
            event = bound(command, common, self.versions.setdefault(command.policy, [digest(command.policy, 0)]))
        elif isinstance(command, c.JoinGang):
            event = e.RankJoined(**common, policy=command.policy, meeting=command.meeting)
        elif isinstance(command, c.SuspendPolicy):
            event = suspended(command, common, child, number)
        elif isinstance(command, c.Accumulate):
            rows = self.micro_batches[command.policy, command.micro_batch]
            event = e.MicroBatchAccumulated(
                policy=command.policy,
                micro_batch=command.micro_batch,
                accumulator=command.accumulator,
                stats=figures(len(rows)),
            )
        else:
            self.checkpoints.append((command.label, command.step, {n: p.version for n, p in command.pins.items()}))
            event = e.CheckpointWritten(label=command.label, step=command.step, versions={}, path="/tmp/x", bytes=1)
        self.put(f"{command.kind}:{number}", event)
        return None

    def made_by(self, sample, policy):
        """Return the version that made a row."""
        return self.groups[sample.draw].pins[policy].version

    def commit_step(self, number, command, child):
        history = self.versions[command.policy]
        if len(history) != command.next_version:
            return self.fail(number, command, "version")
        del self.open[number]
        applied(self, command)
        history.append(digest(command.policy, command.next_version))
        committed = e.StepCommitted(
            policy=command.policy,
            version=command.next_version,
            parent=command.next_version - 1,
            digest=history[-1],
            accumulator=command.accumulator,
            grad_norm=0.5,
            learning_rate=command.learning_rate,
        )
        self.put(f"step:{command.policy}:{command.next_version}", committed)
        return None

    def play_members(self, number, command):
        """Play one or two more episodes of a group; the last ones of all groups end the command."""
        left = {
            g.draw: [m for m in range(g.members) if m not in self.ended_members.get(g.draw, ())] for g in command.groups
        }
        todo = [(draw, members) for draw, members in left.items() if members]
        if todo:
            draw, members = self.rng.choice(todo)
            ending = self.rng.sample(members, min(len(members), self.rng.randint(1, 2)))
            self.groups.setdefault(draw, command)
            self.ended_members.setdefault(draw, set()).update(ending)
            group = next(g for g in command.groups if g.draw == draw)
            self.put(f"group:{draw}:{ending}", self.settle(number, command, group, ending))
            left[draw] = [m for m in members if m not in ending]
        if not any(left.values()):
            del self.open[number]

    def play(self, number, command):
        """Play one more group of a rollout command; the last one ends it."""
        if command.by_episode:
            return self.play_members(number, command)
        todo = [g for g in command.groups if g.draw not in self.groups]
        if todo:
            group = self.rng.choice(todo)
            self.groups[group.draw] = command
            self.plays.append(group.draw)
            self.put(f"group:{group.draw}", self.settle(number, command, group))
        if len(todo) <= 1:
            del self.open[number]
        return None

    def settle(self, number, command, group, members=None):
        self.now += 0.001
        ending = range(group.members) if members is None else members
        episodes = tuple(self.episode(member, command) for member in ending)
        return e.GroupSettled(
            draw=group.draw,
            origin=command.origin,
            epoch=command.epoch,
            command_no=number,
            episodes=episodes,
            started_at=self.now,
            finished_at=self.now,
            versions={name: pin.version for name, pin in command.pins.items()},
            part=command.by_episode,
        )

    def episode(self, member, command=None):
        return episode(self, member, command)

    def kinds(self):
        return [n.command.kind for d in self.decisions for n in d.commands]

    def commands(self, kind):
        return [n.command for d in self.decisions for n in d.commands if n.command.kind == kind]


def started(spec=None, **options):
    cluster = FakeCluster(spec or make_spec(), **options)
    cluster.verb(e.Verb.START)
    return cluster


def running(spec=None, **options):
    return started(spec, **options).run(until=lambda x: x.status is RunStatus.RUNNING)
