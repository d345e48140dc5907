"""One brain, two bodies: the real driver and the simulator decide the same where work takes as long.

The real side is the driver's loop over a real PostgreSQL. Its workers take as long for every command as the simulated
machines, on a virtual clock that is the driver's as well: what ends next ends once all before is decided on.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.simulator.cluster import cluster
from flexmarl.simulator.cluster.replaying import Handled, replay
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenarios.scenario import Scenario
from flexmarl.store.control import runs
from tests.integration.test_driver import Bench, bench, make_spec
from tests.support.virtual_workers import Story, VirtualWorkers

pytestmark = pytest.mark.services

__all__ = ["bench"]  # the fixture

REPORT_S = 0.97
"""Reports come so often: the core counts their age in whole seconds, and which side of a limit they are on is to differ
by more than what a database rounds."""


def scenario(case: dict[str, Any]) -> Scenario:
    """Make a run of two agents; a case says what is different."""
    changes = {"batch": {}, "resources": {}, **case.get("spec", {})}
    spec = make_spec(
        budget={"train_steps": case.get("steps", 3)},
        evaluation={"every_steps": 100, "tasks": 1},
        mechanisms=changes.pop("mechanisms", {}),
        batch={"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4}
        | changes.pop("batch"),
        resources={"rollout_devices": 1, "training_devices": 1, "trainer_policies": 1} | changes.pop("resources"),
    )
    return Scenario.model_validate(
        {
            "spec": spec,
            "seed": 0,
            "workload": {
                "stages": [["speaker"], ["listener"]],
                "each": {"prompt": 1, "reply": 2},
                "environment": {"mean": 0.6, "sigma": 0.5},
            }
            | case.get("workload", {}),
            "machine": {
                "engine": {"token": 1e-6, "prefill": 1e9, "load": 0.17, "turn": 0.07},
                "trainer": {"token": 0.0, "micro_batch": 0.23, "step": 0.13, "swap": 0.11, "create": 0.19},
                "delays": {"report": 1e-4, "decide": 1e-5, "hop": 1e-4, "pick_up": 1e-4, "start": 0.2},
            },
            "faults": case.get("faults", {}),
        }
    )


def simulated(played: Scenario) -> Handled:
    """Simulate a run to its end, and return what its core was told and what it decided."""
    run, handled = alone(played), Handled()
    handle = run.driver.core.handle

    def heard(event: e.Event, now: float) -> Decision:
        handled.append((now, event, handle(event, now)))
        return handled[-1][2]

    run.driver.core.handle = heard  # type: ignore[method-assign]
    while not run.driver.ended and run.clock.step():
        pass
    assert run.driver.ended.startswith("completed"), run.driver.ended
    return handled


def real(bench: Bench, played: Scenario, story: Story, virtual: pytest.MonkeyPatch) -> Handled:
    """Let the real driver run it, and return what its log leads to, which is what its command table holds."""
    workers = VirtualWorkers(bench.url, bench.pushed, played, story)
    due, decide = RunSession.due, RunSession.decide
    virtual.setattr(RunSession, "due", lambda own, waiting, _: due(own, waiting, workers.now))
    virtual.setattr(RunSession, "decide", lambda own, waiting, _, poisoned: decide(own, waiting, workers.now, poisoned))
    with workers:
        bench.driver()
        bench.start(spec=played.spec)
        run = bench.finish(timeout_s=60.0)
        assert (run.status, run.step) == (RunStatus.COMPLETED, played.spec.budget.train_steps)
        bench.settle()
    core = Orchestrator(ExperimentSpec.model_validate(bench.stored().spec))
    return [(one.at, one.event, core.handle(one.event, one.at)) for one in runs.events_after(bench.conn, 1, 0)]


class Names:
    """Leases by what they are and when they were granted: numbers and devices differ from body to body."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}
        self._played: dict[int, list[int]] = {}
        """Rollout command -> its draws."""

    def learn(self, event: e.Event) -> None:
        if isinstance(event, e.DevicesGranted):
            for lease in event.leases:
                self._of[lease.lease_id] = f"{lease.use}{sum(str(lease.use) in name for name in self._of.values())}"

    def fact(self, event: e.Event) -> str:
        """Name a fact by what happened."""
        parts = [event.kind, *(self._of[lease] for lease in [getattr(event, "lease_id", 0)] if lease in self._of)]
        for name in ("verb", "origin", "draw", "policy", "micro_batch", "version"):
            if hasattr(event, name):
                parts.append(f"{name}={getattr(event, name)}")
        return " ".join(parts)

    def order(self, no: int, command: c.Command) -> str:
        """Name a command by what is to be done."""
        lease = self._of.get(getattr(command, "lease_id", 0), "")
        match command:
            case c.PlayGroups():
                self._played[no] = [group.draw for group in command.groups]
                pins = {name: pin.version for name, pin in sorted(command.pins.items())}
                what = f"{command.origin} {[g.draw for g in command.groups]} of cohort {command.cohort} with {pins}"
                what += f" at {self._of[command.engine]}" if command.engine else ""
            case c.HoldGroups():
                what = f"{sorted(self._played[no] for no in command.commands)} {command.hold}"
            case c.CutMicroBatch():
                rows = sorted((row.draw, row.member, row.role, row.turn) for row in command.samples)
                what = f"{command.ref.policy} {command.ref.no} {rows}"
            case c.Accumulate():
                what = f"{command.policy} {command.micro_batch}"
            case c.OptimizerStep():
                what = f"{command.policy} {command.micro_batches} to {command.next_version}"
            case c.BindPolicy() | c.LoadWeights() | c.SuspendPolicy():
                what = f"{command.policy} {getattr(command, 'version', '')}"
            case c.UnloadPolicy():
                what = f"{command.policy} {command.hand_over} {self._of.get(command.to, '')}"
            case _:
                what = ""
        return f"{command.kind} {lease} {what}"


def decided(handled: Handled) -> list[tuple[str, str]]:
    """List every command with the fact that it was decided upon, in causal order."""
    names, found = Names(), []
    for _, event, decision in handled:
        names.learn(event)
        found += [(names.fact(event), names.order(one.no, one.command)) for one in decision.commands]
    return found


def told_in(handled: Handled) -> Story:
    """Return what a simulation says of groups and of demand."""
    began = {one.no: at for at, _, decision in handled for one in decision.commands}
    return Story(
        {
            (event.origin, event.draw): (event.finished_at - began[event.command_no], event)
            for _, event, _ in handled
            if isinstance(event, e.GroupSettled)
        },
        tuple((at, event) for at, event, _ in handled if isinstance(event, e.DemandReported)),
    )


def shown(handled: Handled) -> set[str]:
    """Return what a run came to show: kinds of facts, commands and rulings, and how episodes and cohorts fared."""
    found: set[str] = set()
    settled = steps = 0
    for _, event, decision in handled:
        found |= {event.kind, *(one.command.kind for one in decision.commands), *(r.kind for r in decision.rulings)}
        found |= {"void"} if decision.void else set()
        for one in event.episodes if isinstance(event, e.GroupSettled) else ():
            found |= {str(one.status), "played again" if one.attempt > 1 else "played"}
        settled, steps = settled + sum(r.kind == "cohort_settled" for r in decision.rulings), decision.step
        found |= {"settled ahead"} if settled > steps + 1 else set()
    return found


def lines(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{fact} -> {order}" for fact, order in pairs]


CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "micro_batch": ({}, {"suspend_policy"}),
    "wavefront": (
        {"spec": {"mechanisms": {"trainer_protocol": "mini_batch", "publication": "wavefront"}}},
        {"suspend_policy"},
    ),
    "bounded": (
        {"spec": {"mechanisms": {"lag_policy": {"bound": 1}, "publication": "delayed"}}},
        {"suspend_policy"},
    ),
    "one_version": (
        {
            "steps": 2,
            "spec": {
                "mechanisms": {"lag_policy": {"bound": 2}, "mover": {"type": "repack", "below": 8, "every_s": 1}},
                "batch": {"rollout_groups": 1},
                "resources": {"rollout_devices": 2, "engine_versions": 1},
            },
            "workload": {"environment": {"mean": 4.0, "sigma": 6.0}},
        },
        {"engine_emptied", "unload_policy", "demand_reported"},
    ),
    "surplus": (
        {
            "spec": {
                "mechanisms": {
                    "lag_policy": {"bound": 1},
                    "redundancy": {"type": "extra_groups", "extra": 3, "surplus": "cancel"},
                },
                "batch": {"rollout_groups": 1},
            },
        },
        {"void", "settled ahead"},
    ),
    "paused_surplus": (
        {
            "spec": {
                "mechanisms": {
                    "trainer_protocol": "batch",
                    "lag_policy": {"bound": 1, "at_admission": "trained", "in_flight": "resume", "at_cut": "train"},
                    "redundancy": {"type": "extra_groups", "share": 1.0, "surplus": "pause"},
                },
                "batch": {"rollout_groups": 1},
            },
        },
        {"hold_groups", "suspend_policy"},
    ),
    "losses": (
        {
            "steps": 2,
            "spec": {
                "batch": {"episodes_per_task": 3, "min_members": 2, "rollout_groups": 1},
                "resources": {"rollout_devices": 2},
            },
            "workload": {"failure": 0.6},
            "faults": {
                "children": [{"at": 2.9, "device": 0}, {"at": 5.3, "device": 2}],
                "workers": [{"at": 3.1, "share": 0.5, "again": 1.0}],
            },
        },
        {"child_lost", "finished", "failed", "played again"},
    ),
    "shared_devices": (
        {
            "steps": 2,
            "spec": {
                "mechanisms": {"allocation": "colocated"},
                "resources": {"rollout_devices": 2, "training_devices": 2},
            },
        },
        {"devices_turned", "sleep_engine", "wake_engine", "vacate_trainer", "suspend_policy"},
    ),
}
"""What is different -> what the run then shows."""


@pytest.mark.parametrize("name", CASES)
def test_both_bodies_decide_the_same_upon_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(cluster, "REPORT_S", REPORT_S)
    case, expected = CASES[name]
    played = scenario(case)
    virtual = simulated(played)
    assert expected <= shown(virtual)
    handled = real(bench, played, told_in(virtual), monkeypatch)
    assert lines(decided(handled)) == lines(decided(virtual))
    assert (bench.pushed.held > 0) is ("hold_groups" in expected), "rollout workers are told what is held"
    assert len(decided(virtual)) > 40
    log = [(at, event) for at, event, _ in handled]
    assert decided(replay(played.spec, log)) == decided(handled)
