"""One brain, two bodies: the real driver and the simulator decide the same where work takes as long.

The real side is the driver's loop over a real PostgreSQL. Its workers take as long for every command as the simulated
machines, on a virtual clock that is the driver's as well: what ends next ends once all before is decided on.
"""

from collections.abc import Iterable

import pytest

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.spec import ExperimentSpec
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.runs.driver.session import RunSession
from flexmarl.orchestrator import Decision, Orchestrator
from flexmarl.simulator.replaying import Handled, replay
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenario import Scenario
from flexmarl.store import runs
from tests.integration.test_driver import Bench, bench, make_spec
from tests.support.virtual_workers import Settled, VirtualWorkers

pytestmark = pytest.mark.services

__all__ = ["bench"]  # the fixture


def scenario(seed: int, **mechanisms: object) -> Scenario:
    spec = make_spec(
        batch={"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
        budget={"train_steps": 3},
        evaluation={"every_steps": 100, "tasks": 1},
        resources={"rollout_devices": 1, "training_devices": 1, "trainer_policies": 1},
        mechanisms=mechanisms,
    )
    return Scenario.model_validate(
        {
            "spec": spec,
            "seed": seed,
            "workload": {
                "stages": [["speaker"], ["listener"]],
                "each": {"prompt": 1, "reply": 2},
                "environment": {"mean": 0.6, "sigma": 0.5},
            },
            "machine": {
                "engine": {"token": 1e-6, "prefill": 1e9, "load": 0.17},
                "trainer": {"token": 0.0, "micro_batch": 0.23, "step": 0.13, "swap": 0.11, "create": 0.19},
                "delays": {"report": 1e-4, "decide": 1e-5, "hop": 1e-4, "pick_up": 1e-4, "start": 0.2},
            },
        }
    )


def simulated(played: Scenario) -> Handled:
    """Simulate a run to its end, and return what its core was told and what it decided."""
    cluster, handled = alone(played), Handled()
    handle = cluster.driver.core.handle

    def heard(event: e.Event, now: float) -> Decision:
        handled.append((now, event, handle(event, now)))
        return handled[-1][2]

    cluster.driver.core.handle = heard  # type: ignore[method-assign]
    while not cluster.driver.ended and cluster.clock.step():
        pass
    assert cluster.driver.ended.startswith("completed"), cluster.driver.ended
    return handled


def real(bench: Bench, played: Scenario, settled: Settled, virtual: pytest.MonkeyPatch) -> Handled:
    """Let the real driver run it, and return what its log leads to, which is what its command table holds."""
    workers = VirtualWorkers(bench.url, bench.pushed, played.spec, played.machine, settled)
    due, decide = RunSession.due, RunSession.decide
    virtual.setattr(RunSession, "due", lambda own, waiting, _: due(own, waiting, workers.now))
    virtual.setattr(RunSession, "decide", lambda own, waiting, _, poisoned: decide(own, waiting, workers.now, poisoned))
    with workers:
        bench.driver()
        bench.start(spec=played.spec)
        run = bench.finish(timeout_s=60.0)
        assert (run.status, run.step) == (RunStatus.COMPLETED, 3)
        bench.settle()
    core = Orchestrator(ExperimentSpec.model_validate(bench.stored().spec))
    return [(one.at, one.event, core.handle(one.event, one.at)) for one in runs.events_after(bench.conn, 1, 0)]


class Names:
    """Leases by what they are and when they were granted: numbers and devices differ from body to body."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}

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

    def order(self, command: c.Command) -> str:
        """Name a command by what is to be done."""
        lease = self._of.get(getattr(command, "lease_id", 0), "")
        match command:
            case c.PlayGroups():
                pins = {name: pin.version for name, pin in sorted(command.pins.items())}
                what = f"{command.origin} {[g.draw for g in command.groups]} of cohort {command.cohort} with {pins}"
            case c.CutMicroBatch():
                rows = sorted((row.draw, row.member, row.role, row.turn) for row in command.samples)
                what = f"{command.ref.policy} {command.ref.no} {rows}"
            case c.Accumulate():
                what = f"{command.policy} {command.micro_batch}"
            case c.OptimizerStep():
                what = f"{command.policy} {command.micro_batches} to {command.next_version}"
            case c.BindPolicy() | c.LoadWeights() | c.SuspendPolicy():
                what = f"{command.policy} {getattr(command, 'version', '')}"
            case _:
                what = ""
        return f"{command.kind} {lease} {what}"


def decided(handled: Handled) -> list[tuple[str, str]]:
    """List every command with the fact that it was decided upon, in causal order."""
    names, found = Names(), []
    for _, event, decision in handled:
        names.learn(event)
        found += [(names.fact(event), names.order(one.command)) for one in decision.commands]
    return found


def settled_in(handled: Handled) -> Settled:
    return {(event.origin, event.draw): event for _, event, _ in handled if isinstance(event, e.GroupSettled)}


def lines(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{fact} -> {order}" for fact, order in pairs]


@pytest.mark.parametrize(
    ("seed", "mechanisms"),
    [
        (0, {}),
        (0, {"trainer_protocol": "mini_batch", "publication": "wavefront"}),
        (0, {"lag_policy": {"bound": 1}, "publication": "delayed"}),
    ],
    ids=["micro_batch", "wavefront", "bounded"],
)
def test_both_bodies_decide_the_same_upon_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seed: int, mechanisms: dict
) -> None:
    played = scenario(seed, **mechanisms)
    virtual = simulated(played)
    handled = real(bench, played, settled_in(virtual), monkeypatch)
    assert lines(decided(handled)) == lines(decided(virtual))
    assert len(decided(virtual)) > 40
    log = [(at, event) for at, event, _ in handled]
    assert decided(replay(played.spec, log)) == decided(handled)
