"""The core in memory under a large run that is disturbed as runs are, call by call.

Two runs. `core`: one cohort after another, evaluations and checkpoints beside them. `overlap`: lag bounded by 2, extra
groups whose surplus plays on, so several cohorts are under way and older weights are served beside newer ones. In both,
facts come twice, children die and come back - engines, and the trainer, whose gradients are accumulated again - and
engines refuse weights and are asked again after a back-off; timers fire where the driver fires them, between batches.
Invariants and garbage collector are on. Timed is every call from the second step on, whatever it leads to.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import harness

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator import Decision, Orchestrator
from tests.benchmarks.orchestrator_load import Cluster, Size, team

TWICE_EVERY = 97
"""One fact in so many is told twice."""
DEATHS = 7
"""An engine dies whenever the fleet has told this many facts per device; its successor answers some facts later."""
TRAINER_EVERY = 5
"""Of so many deaths one is the trainer's."""
REFUSALS = 3
"""Facts per device for each load that fails and may be tried again."""
BACK_AFTER = 50
"""Facts between a death and the successor's first word."""
BATCH = 256
"""Facts between two looks at the clock."""
FACT_S = 1e-4
"""What the clock of the run goes on by from fact to fact."""


def one_by_one(size: Size, steps: int) -> ExperimentSpec:
    """Describe the run whose cohorts follow each other."""
    spec = team(size, steps)
    evaluation = spec.evaluation.model_copy(update={"every_steps": 1, "tasks": 64})
    checkpoints = spec.checkpoints.model_copy(update={"every_steps": 1})
    return spec.model_copy(update={"evaluation": evaluation, "checkpoints": checkpoints})


def overlapping(size: Size, steps: int) -> ExperimentSpec:
    """Describe the run whose cohorts overlap."""
    spec = one_by_one(size, steps)
    changes = {
        "lag_policy": {"bound": 2},
        "redundancy": {"type": "extra_groups", "extra": size.slice_groups, "surplus": "continue"},
    }
    mechanisms = type(spec.mechanisms).model_validate(spec.mechanisms.model_dump() | changes)
    return spec.model_copy(update={"mechanisms": mechanisms})


@dataclass
class Restless(Cluster):
    """A cluster in which things go wrong, at fixed places of the run."""

    told: int = 0
    deaths: int = 0
    back: list[tuple[int, e.Event]] = field(default_factory=list)

    def disturbed(self, decisions: Sequence[Decision]) -> list[e.Event]:
        """Answer decisions as a disturbed cluster does."""
        wave = [fact for event in self.answers(decisions) for fact in self._with_faults(event)]
        wave += [event for _, event in self.back]
        self.back.clear()
        return wave

    def _with_faults(self, event: e.Event) -> Iterator[e.Event]:
        self.told += 1
        yield event
        if self.told % TWICE_EVERY == 0:
            yield event
        if self.told % (DEATHS * self.size.devices) == 0 and self.lives:
            yield self._death()
        while self.back and self.back[0][0] <= self.told:
            yield self.back.pop(0)[1]

    def _death(self) -> e.Event:
        self.deaths += 1
        trainer = self.deaths % TRAINER_EVERY == 0
        lease_id = 1 if trainer else 2 + self.told // 7 % (self.size.devices - 1)
        lost = e.ChildLost(lease_id=lease_id, incarnation=self.lives[lease_id], reason="killed")
        self.lives[lease_id] = f"life-{lease_id}-{self.told}"
        use = e.DeviceUse.TRAINER if trainer else e.DeviceUse.ENGINE
        ready = e.ChildReady(lease_id=lease_id, use=use, incarnation=self.lives[lease_id])
        self.back.append((self.told + BACK_AFTER, ready))
        return lost

    def _answer(self, number: int, command: c.Command) -> Iterator[e.Event]:
        if isinstance(command, c.LoadWeights) and number % (REFUSALS * self.size.devices) == 0:
            yield e.CommandFailed(
                command_no=number, command_kind=command.kind, code="busy", message="no memory now", retryable=True
            )
        else:
            yield from super()._answer(number, command)


@dataclass
class Timed:
    """A core whose every call is timed from the second step on."""

    core: Orchestrator
    taken: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    starting_ns: int = 0
    now: float = 1_000_000.0
    deadline: float | None = None

    @property
    def measured(self) -> bool:
        """Tell whether the run is past its first step."""
        return self.core.state.step > 0 and self.core.state.lifecycle.status is RunStatus.RUNNING

    def handle(self, event: e.Event) -> Decision:
        """Take one fact."""
        self.now += FACT_S
        measured = self.measured
        began = time.perf_counter_ns()
        decision = self.core.handle(event, self.now)
        took = time.perf_counter_ns() - began
        self.deadline = decision.deadline
        if measured:
            self.taken[event.kind].append(took)
        else:
            self.starting_ns += took
        return decision

    def wave(self, facts: Sequence[e.Event]) -> Iterator[Decision]:
        """Take many facts, and a timer between two batches when one is due; alone, a timer is waited for."""
        if not facts and self.deadline is not None:
            self.now = max(self.now, self.deadline)
        for first in range(0, max(len(facts), 1), BATCH):
            for event in facts[first : first + BATCH]:
                yield self.handle(event)
            if self.deadline is not None and self.now >= self.deadline:
                yield self.handle(e.TimerFired())


def measure(report: harness.Report, size: Size, train_steps: int) -> None:
    """Time every call of the core in both runs."""
    _measure(report, "core", one_by_one(size, train_steps), size)
    _measure(report, "overlap", overlapping(size, train_steps + 2), size)
    report.settings |= {"agents": size.agents, "devices": size.devices, "samples_in_flight": size.samples_in_flight}


def _measure(report: harness.Report, name: str, spec: ExperimentSpec, size: Size) -> None:
    timed, cluster = Timed(Orchestrator(spec)), Restless(spec, size)
    wave: list[e.Event] = [e.RunVerb(verb=e.Verb.START)]
    cpu_s, most = 0.0, 0
    while wave or timed.deadline is not None:
        measured, began = timed.measured, time.thread_time()
        decisions = list(timed.wave(wave))
        if measured:
            cpu_s += time.thread_time() - began
        most = max(most, len(timed.core.state.cohorts))
        wave = cluster.disturbed(decisions)
    status = timed.core.state.lifecycle.status
    if status is not RunStatus.COMPLETED:
        raise AssertionError(f"the run is {status}: {timed.core.state.lifecycle.reason_text}")
    _tell(report, name, timed, cpu_s)
    report.settings |= {f"{name}_cohorts_at_once": most, f"{name}_deaths": cluster.deaths}


def _tell(report: harness.Report, name: str, timed: Timed, cpu_s: float) -> None:
    every = sorted(ns for kind in timed.taken.values() for ns in kind)
    others = [ns for kind, own in timed.taken.items() if kind != "weights_served" for ns in own]
    report.figures |= {
        f"{name}_events_per_s": len(every) / sum(every) * 1e9,
        f"{name}_events_per_cpu_s": len(every) / cpu_s,
        f"{name}_other_than_weights_per_s": len(others) / sum(others) * 1e9,
        f"{name}_p50_ms": _at(every, 0.5),
        f"{name}_p99_ms": _at(every, 0.99),
        f"{name}_max_ms": _at(every, 1.0),
        f"{name}_start_s": timed.starting_ns / 1e9,
    }
    for kind, times in sorted(timed.taken.items()):
        times.sort()
        report.figures[f"{name}_{kind}_p99_ms"] = _at(times, 0.99)
        report.figures[f"{name}_{kind}_max_ms"] = _at(times, 1.0)
    report.settings[f"{name}_events"] = {kind: len(times) for kind, times in sorted(timed.taken.items())}


def _at(ordered: Sequence[int], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] / 1e6
