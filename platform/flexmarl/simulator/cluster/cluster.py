"""A virtual cluster around the real core: decisions become commands, commands take their time and become facts.

Invariants: the core alone decides; every command that it gives is carried out or is void; facts reach it one after the
other, after the delays of a real driver. What a child was asked for that is gone is answered by nobody: its loss is.
"""

from dataclasses import dataclass, field

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.decisions import Metric
from flexmarl.contracts.rulings import Ruling
from flexmarl.contracts.status import TERMINAL, RunStatus
from flexmarl.contracts.wire import Origin
from flexmarl.orchestrator import Orchestrator
from flexmarl.orchestrator.types import Decision
from flexmarl.simulator.cluster.driver import SimulatedDriver
from flexmarl.simulator.cluster.hosting import SimulatedHosting
from flexmarl.simulator.cluster.pool import SimulatedPool, Tenancy
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.cores import Cores
from flexmarl.simulator.devices.trace import DeviceTenure, Kind, Trace
from flexmarl.simulator.devices.training import Training
from flexmarl.simulator.rollout import facts
from flexmarl.simulator.rollout.episodes import EpisodePlaying
from flexmarl.simulator.rollout.playing import RolloutModel
from flexmarl.simulator.scenarios.scenario import Machine, Scenario

REPORT_S = 1.0
"""How often rollout workers report what they ask for, where engines cannot hold all policies."""


@dataclass(slots=True)
class OutcomeLog:
    """What the core decided that is no command, and when it was done with each train step."""

    metrics: list[Metric] = field(default_factory=list)
    rulings: list[tuple[float, Ruling]] = field(default_factory=list)
    stepped: list[float] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    """Tokens that had been trained by each of these moments."""
    rows: list[int] = field(default_factory=list)
    """Rows that had."""
    opened: dict[int, float] = field(default_factory=dict)
    """Cohort -> when it began to be played."""
    status: RunStatus = RunStatus.DRAFT
    since: float = 0.0
    """When the run came to be so."""
    granted: list[float] = field(default_factory=list)
    """When the run was granted devices."""

    def note(self, decision: Decision, now: float) -> None:
        """Keep what a decision says beside its commands, and when it began a cohort."""
        if decision.metrics:
            self.metrics += decision.metrics
        if decision.rulings:
            self.rulings += [(now, ruling) for ruling in decision.rulings]
        if decision.status is not self.status:
            self.status, self.since = decision.status, now
        for numbered in decision.commands:
            command = numbered.command
            if command.kind == "play_groups" and command.origin is Origin.TRAIN:
                self.opened.setdefault(command.cohort, now)


class Cluster:
    """One run. It has devices of `pool`, which other runs may share."""

    def __init__(self, scenario: Scenario, clock: Clock, pool: SimulatedPool, name: Tenancy) -> None:
        self.clock, self.pool, self.trace, self.log, self.name = clock, pool, Trace(), OutcomeLog(), name
        self.scenario = scenario
        opening = frozenset(scenario.spec.policy_of(role) for role in scenario.workload.stages[0])
        core = Orchestrator(scenario.spec, opening=opening)
        self.host = Cores(clock, self._machine.host, self._goes_on) if self._machine.host.cores else clock
        self.driver = SimulatedDriver(clock, self.host, self._machine.delays, core, self._carry_out)
        self._void: set[int] = set()
        tell = self.driver.tell
        play = EpisodePlaying if scenario.granularity == "episode" else RolloutModel
        self.playing = play(clock, self.host, scenario, tell)
        self.training = Training(clock, self.host, self.trace, self._machine, self._void, tell)
        self.hosting = SimulatedHosting(clock, self.host, self.trace, scenario, pool, self.playing, self.training, tell)
        shared = self.training.shared
        shared.takes, shared.works = self.hosting.takes, self.hosting.works

    @property
    def _machine(self) -> Machine:
        return self.scenario.machine

    def _goes_on(self) -> tuple[bool, bool]:
        return self.playing.plays, self.training.works

    def start(self) -> None:
        """Ask for the run to start."""
        self.driver.tell(e.RunVerb(verb=e.Verb.START))
        if self.scenario.spec.reports_demand:
            self.clock.after(REPORT_S, self._report)

    def standing(self) -> tuple[RunStatus, float]:
        """Return how the run is, and since when."""
        return self.log.status, self.log.since

    def least_engines(self) -> int:
        """Return how many engines it cannot do without."""
        return self.scenario.spec.resources.engines

    def told(self, fact: e.Event) -> None:
        """Take a fact about devices: from the pool, or from whoever wants one back."""
        if isinstance(fact, e.DevicesGranted):
            self.log.granted.append(self.clock.now)
            for one in fact.leases:
                held = DeviceTenure(one.device_id, one.use.value, self.clock.now, beside=one.beside)
                self.trace.held[one.lease_id] = held
                self.hosting.granted(one)
        self.driver.tell(fact)

    def play(self, no: int, command: c.PlayGroups) -> None:
        """Let a rollout worker begin with a command, unless it is void."""
        if no not in self._void:
            self.playing.play(no, command)

    def _carry_out(self, decision: Decision) -> None:
        log = self.log
        log.note(decision, self.clock.now)
        while len(log.stepped) < decision.step:
            log.stepped.append(self.clock.now)
            log.trained.append(self.training.trained)
            log.rows.append(self.driver.core.state.totals.samples_trained)
        if decision.void:
            self._void.update(decision.void)
            self.playing.withdraw(decision.void)
            self.pool.withdraw(self, decision.void)
        for numbered in decision.commands:
            no, command = numbered.no, numbered.command
            if c.COMMAND_KINDS[command.kind].child is c.TRAINER:
                self.host.after(self._machine.delays.hop, self.training.take, no, command)
            else:
                self._route(no, command)
        if decision.status in TERMINAL:  # those included that the core never heard of
            for lease_id in list(self.hosting.children):
                self.host.after(self._machine.delays.hop, self.hosting.release, lease_id)

    def _route(self, no: int, command: c.Command) -> None:
        delays = self._machine.delays
        match command:
            case c.RequestDevices():
                self.pool.ask(self, no, command)
            case c.ReleaseLease():
                self.host.after(delays.hop, self.hosting.release, command.lease_id)
            case c.CutMicroBatch():
                # What may be trained again is asked for again.
                known, again = self.playing.tokens, self.driver.core.plan.spec.sampling.replay.on
                keys = [(r.draw, r.member, r.attempt, r.role, r.turn) for r in command.samples]
                tokens = sum(map(known.__getitem__ if again else known.pop, keys))
                self.training.cut(command.ref, len(keys), tokens, 0 if command.replayed else tokens)
            case c.HostLease():
                self.host.after(delays.pick_up, self.hosting.host, command)
            case c.PlayGroups():
                self.host.after(delays.pick_up, self.play, no, command)
            case c.HoldGroups():
                self.clock.after(delays.hold, self.playing.held.take, command)
            case c.LoadWeights():
                self.host.after(delays.hop, self._load, no, command)
            case c.UnloadPolicy():
                self.host.after(delays.hop, self._unload, no, command)
            case c.SleepEngine() | c.WakeEngine():
                self.host.after(delays.hop, self._turn, no, command)

    def _load(self, no: int, command: c.LoadWeights) -> None:
        lease, life = command.lease_id, self.hosting.life(command.lease_id)
        if not life or no in self._void:
            return
        seconds = self._machine.engine.load * self._machine.times(command.policy)
        seconds = self.hosting.takes((lease,), seconds)
        number = self.trace.begin(lease, "load", self.clock.now, command.policy)
        self.host.after(seconds, self._loaded, no, command, life, seconds, number)

    def _loaded(self, no: int, command: c.LoadWeights, life: str, seconds: float, number: int) -> None:
        self.trace.end(number, self.clock.now)
        if no in self._void or self.hosting.life(command.lease_id) != life:
            return
        engine = self.playing.engines.get(command.lease_id)
        assert engine is not None, "a child that lives is among the engines"
        engine.serve(command.policy, command.version, command.keeps)
        self.hosting.works(command.lease_id)
        self.driver.tell(
            e.WeightsServed(
                lease_id=command.lease_id, incarnation=life, seconds=seconds, policy=command.policy,
                version=command.version, digest=command.digest, keeps=command.keeps, command_no=no,
            )
        )  # fmt: skip
        self.host.after(self._machine.delays.pick_up, self.playing.weights, command.policy)

    def _unload(self, no: int, command: c.UnloadPolicy) -> None:
        """Hand a policy's turns back and forget it; without `hand_over`, only what has not begun goes elsewhere."""
        engine = self.playing.engines.get(command.lease_id)
        if engine is None or no in self._void:
            return
        turns = engine.asked_of(command.policy)
        if any(turn.phase != "queued" for turn in turns) and not command.hand_over:
            self.host.after(self._machine.delays.hop, self._unload, no, command)
            return
        for turn in turns:
            engine.drop(turn)
        engine.held.forget(command.policy)
        for turn in turns:
            turn.to = command.to
            self.playing.hand_back(turn)
        life = self.hosting.life(command.lease_id)
        self.driver.tell(
            e.PolicyUnloaded(lease_id=command.lease_id, incarnation=life, policy=command.policy, command_no=no)
        )

    def _turn(self, no: int, command: c.SleepEngine | c.WakeEngine) -> None:
        """Let an engine give its memory up once its replies are made, or have it again."""
        engine = self.playing.engines.get(command.lease_id)
        if engine is None or no in self._void:
            return
        if engine.running or engine.waiting:
            self.host.after(self._machine.delays.hop, self._turn, no, command)
            return
        kind: Kind = "sleep" if isinstance(command, c.SleepEngine) else "wake"
        if kind == "sleep":
            for policy in list(engine.held.newest):
                engine.held.forget(policy)
        number = self.trace.begin(command.lease_id, kind, self.clock.now)
        life = self.hosting.life(command.lease_id)
        self.clock.after(self._machine.engine.turn, self._turned, no, command, life, number)

    def _turned(self, no: int, command: c.SleepEngine | c.WakeEngine, life: str, number: int) -> None:
        self.trace.end(number, self.clock.now)
        if no in self._void or self.hosting.life(command.lease_id) != life:
            return
        lease, seconds = command.lease_id, self._machine.engine.turn
        if isinstance(command, c.SleepEngine):
            slept = e.EngineSlept(lease_id=lease, incarnation=life, bytes=1, seconds=seconds, command_no=no)
            self.driver.tell(slept)
        else:
            self.driver.tell(e.EngineWoke(lease_id=lease, incarnation=life, seconds=seconds, command_no=no))

    def _report(self) -> None:
        if self.driver.ended:
            return
        depths: dict[int, int] = {}
        queued: dict[int, int] = {}
        cache: dict[int, int] = {}
        for lease, engine in self.playing.engines.items():
            running, waiting = engine.load.running, engine.load.waiting
            depths[lease] = running + waiting
            if waiting:
                queued[lease] = waiting
            if running:
                cache[lease] = engine.cached()
        self.driver.tell(facts.demand(self.playing.demand(), depths, queued, cache))
        self.clock.after(REPORT_S, self._report)
