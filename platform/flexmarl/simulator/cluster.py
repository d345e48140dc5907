"""A virtual cluster around the real core: decisions become commands, commands take their time and become facts.

Invariants: the core alone decides; every command that it gives is carried out or is void; facts reach it one after the
other, after the delays of a real driver.
"""

from dataclasses import dataclass, field

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.wire import PolicyPin
from flexmarl.orchestrator import Orchestrator
from flexmarl.orchestrator.types import Decision, Metric, Ruling
from flexmarl.simulator.clock import Clock
from flexmarl.simulator.driver import Driver
from flexmarl.simulator.engines import Engine
from flexmarl.simulator.playing import Playing
from flexmarl.simulator.scenario import Scenario
from flexmarl.simulator.trace import Kind, Trace
from flexmarl.simulator.training import Cut, Training

REPORT_S = 1.0
"""How often rollout workers report what they ask for, where engines cannot hold all policies."""


@dataclass(slots=True)
class Log:
    """What the core decided that is no command, and when it was done with each train step."""

    metrics: list[Metric] = field(default_factory=list)
    rulings: list[Ruling] = field(default_factory=list)
    stepped: list[float] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    """Tokens that had been trained by each of these moments."""
    rows: list[int] = field(default_factory=list)
    """Rows that had."""


class Cluster:
    def __init__(self, scenario: Scenario) -> None:
        self.clock, self.trace, self.log = Clock(), Trace(), Log()
        self._spec, self._machine = scenario.spec, scenario.machine
        opening = frozenset(scenario.spec.policy_of(role) for role in scenario.workload.stages[0])
        core = Orchestrator(scenario.spec, opening=opening)
        self.driver = Driver(self.clock, self._machine.delays, core, self._carry_out)
        self._void: set[int] = set()
        self._cut: dict[tuple[str, int], Cut] = {}
        self._next_lease = 1
        tell = self.driver.tell
        self.playing = Playing(self.clock, scenario.spec, scenario.workload, scenario.seed, tell)
        self._training = Training(self.clock, self.trace, self._machine, self._void, self._cut, tell)

    def start(self) -> None:
        """Ask for the run to start."""
        self.driver.tell(e.RunVerb(verb=e.Verb.START))
        if self._spec.resources.has_places(len(self._spec.policies)):
            self.clock.after(REPORT_S, self._report)

    def _carry_out(self, decision: Decision) -> None:
        log = self.log
        log.metrics += decision.metrics
        log.rulings += decision.rulings
        while len(log.stepped) < decision.step:
            log.stepped.append(self.clock.now)
            log.trained.append(self._training.trained)
            log.rows.append(self.driver.core.state.samples_trained)
        self._void.update(decision.void)
        self.playing.withdraw(decision.void)
        for numbered in decision.commands:
            self._route(numbered.no, numbered.command)

    def _route(self, no: int, command: c.Command) -> None:
        delays = self._machine.delays
        match command:
            case c.RequestDevices():
                self._grant(no, command)
            case c.ReleaseLease():
                self.clock.after(delays.hop, self._release, command.lease_id)
            case c.CutMicroBatch():
                self._note_cut(command)
            case c.KeepCheckpoints():
                pass
            case c.HostLease():
                self.clock.after(delays.pick_up, self._host, command)
            case c.PlayGroups():
                self.clock.after(delays.pick_up, self._play, no, command)
            case c.LoadWeights():
                self.clock.after(delays.hop, self._load, no, command)
            case c.UnloadPolicy():
                self.clock.after(delays.hop, self._unload, no, command)
            case c.SleepEngine() | c.WakeEngine():
                self.clock.after(delays.hop, self._turn, no, command)
            case _:
                self.clock.after(delays.hop, self._training.take, no, command)

    def _grant(self, no: int, command: c.RequestDevices) -> None:
        engines = [self._lease(e.DeviceUse.ENGINE) for _ in range(command.engines)]
        trainers = [self._lease(e.DeviceUse.TRAINER) for _ in range(command.trainers)]
        shared = [self._lease(e.DeviceUse.TRAINER, engine) for engine in engines[: command.beside]]
        self.driver.tell(e.DevicesGranted(leases=(*engines, *trainers, *shared), command_no=no))

    def _lease(self, use: e.DeviceUse, beside: e.GrantedDevice | None = None) -> e.GrantedDevice:
        lease_id, self._next_lease = self._next_lease, self._next_lease + 1
        device = f"virtual.{use}{lease_id}" if beside is None else beside.device_id
        return e.GrantedDevice(
            lease_id=lease_id, device_id=device, use=use, beside=0 if beside is None else beside.lease_id
        )

    def _host(self, command: c.HostLease) -> None:
        self.trace.uses[command.lease_id] = command.use.value
        number = self.trace.begin(command.lease_id, "start", self.clock.now)
        self.clock.after(self._machine.delays.start, self._ready, command, number)

    def _ready(self, command: c.HostLease, number: int) -> None:
        lease, life = command.lease_id, _life(command.use, command.lease_id)
        self.trace.end(number, self.clock.now)
        if command.use is e.DeviceUse.TRAINER:
            self._training.host(lease, life)
        else:
            self.playing.engines[lease] = Engine(self.clock, self.trace, self._machine.engine, lease)
        self.driver.tell(e.ChildReady(lease_id=lease, use=command.use, incarnation=life))

    def _release(self, lease_id: int) -> None:
        self._training.release(lease_id)
        engine = self.playing.engines.pop(lease_id, None)
        if engine is not None:
            for policy in list(engine.held.newest):
                for turn in engine.asked_of(policy):
                    self.playing.hand_back(turn)
        self.driver.tell(e.LeaseEnded(lease_id=lease_id))

    def _note_cut(self, command: c.CutMicroBatch) -> None:
        known = self.playing.tokens
        tokens = sum(known[row.draw, row.member, row.attempt, row.role, row.turn] for row in command.samples)
        self._cut[command.ref.policy, command.ref.no] = Cut(len(command.samples), tokens)

    def _play(self, no: int, command: c.PlayGroups) -> None:
        if no not in self._void:
            self.playing.play(no, command)

    def _load(self, no: int, command: c.LoadWeights) -> None:
        seconds = self._machine.engine.load * self._machine.times(command.policy)
        number = self.trace.begin(command.lease_id, "load", self.clock.now, command.policy)
        self.clock.after(seconds, self._loaded, no, command, seconds, number)

    def _loaded(self, no: int, command: c.LoadWeights, seconds: float, number: int) -> None:
        self.trace.end(number, self.clock.now)
        engine = self.playing.engines.get(command.lease_id)
        if engine is None or no in self._void:
            return
        pin = PolicyPin(version=command.version, digest=command.digest)
        engine.serve(command.policy, pin, command.keeps)
        self.driver.tell(
            e.WeightsServed(
                lease_id=command.lease_id, incarnation=_life(e.DeviceUse.ENGINE, command.lease_id), seconds=seconds,
                policy=command.policy, version=command.version, digest=command.digest, keeps=command.keeps,
                command_no=no,
            )
        )  # fmt: skip
        self.playing.weights(command.policy)

    def _unload(self, no: int, command: c.UnloadPolicy) -> None:
        """Hand a policy's turns back and forget it; without `hand_over`, only what has not begun goes elsewhere."""
        engine = self.playing.engines.get(command.lease_id)
        if engine is None or no in self._void:
            return
        turns = engine.asked_of(command.policy)
        if any(turn.phase != "queued" for turn in turns) and not command.hand_over:
            self.clock.after(self._machine.delays.hop, self._unload, no, command)
            return
        for turn in turns:
            engine.drop(turn)
        engine.held.forget(command.policy)
        for turn in turns:
            self.playing.hand_back(turn)
        life = _life(e.DeviceUse.ENGINE, command.lease_id)
        self.driver.tell(
            e.PolicyUnloaded(lease_id=command.lease_id, incarnation=life, policy=command.policy, command_no=no)
        )

    def _turn(self, no: int, command: c.SleepEngine | c.WakeEngine) -> None:
        """Let an engine give its memory up once its replies are made, or have it again."""
        engine = self.playing.engines.get(command.lease_id)
        if engine is None or no in self._void:
            return
        if engine.running or engine.waiting:
            self.clock.after(self._machine.delays.hop, self._turn, no, command)
            return
        kind: Kind = "sleep" if isinstance(command, c.SleepEngine) else "wake"
        if kind == "sleep":
            for policy in list(engine.held.newest):
                engine.held.forget(policy)
        number = self.trace.begin(command.lease_id, kind, self.clock.now)
        self.clock.after(self._machine.engine.turn, self._turned, no, command, number)

    def _turned(self, no: int, command: c.SleepEngine | c.WakeEngine, number: int) -> None:
        self.trace.end(number, self.clock.now)
        if no in self._void:
            return
        lease, seconds = command.lease_id, self._machine.engine.turn
        life = _life(e.DeviceUse.ENGINE, lease)
        if isinstance(command, c.SleepEngine):
            slept = e.EngineSlept(lease_id=lease, incarnation=life, bytes=1, seconds=seconds, command_no=no)
            self.driver.tell(slept)
        else:
            self.driver.tell(e.EngineWoke(lease_id=lease, incarnation=life, seconds=seconds, command_no=no))

    def _report(self) -> None:
        if self.driver.ended:
            return
        depths = {lease: engine.running + engine.waiting for lease, engine in self.playing.engines.items()}
        self.driver.tell(e.DemandReported(worker="virtual", policies=self.playing.demand(), engines=depths))
        self.clock.after(REPORT_S, self._report)


def _life(use: e.DeviceUse, lease_id: int) -> str:
    return f"{use}{lease_id}.1"
