"""Facts that are made without a look at their values are what a look would have made of them."""

import pytest

from flexmarl.algorithms.routing import Choice, EngineLoad, Router, RouteRequest
from flexmarl.algorithms.routing.least_loaded import LeastLoaded
from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.specification.routers import LeastLoadedOptions
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin, PolicyPin, SampleRef
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.devices.fleet import SimulatedFleet
from flexmarl.simulator.devices.trace import Trace
from flexmarl.simulator.devices.turns import SimulatedTurn
from flexmarl.simulator.rollout import facts
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import EngineModel

SMALL = {"tasks_per_step": 4, "episodes_per_task": 4, "micro_batch_groups": 1, "rollout_groups": 1}


def alike(made, checked):
    assert repr(made) == repr(checked)
    assert made == checked
    assert made.model_dump_json() == checked.model_dump_json()
    assert made.model_fields_set == checked.model_fields_set
    assert made.model_copy(update={}) == checked


def test_a_row_and_an_outcome():
    row = facts.sample("solver", 1, 20, (3, 8, 4, 12))
    alike(row, SampleRef(role="solver", turn=1, tokens=20, segments=(3, 8, 4, 12)))
    for why, status in (("", EpisodeStatus.FINISHED), ("broke", EpisodeStatus.FAILED)):
        made = facts.outcome(2, 1, why, not why, 0.5, {"solver": 0.5}, (row,), 7.5)
        checked = EpisodeOutcome(
            member=2, attempt=1, status=status, reason=why, replaced=not why, scores={"solver": 0.5}, team_score=0.5,
            samples=(row,), duration_s=7.5, answer="" if why else "simulated", facts={},
        )  # fmt: skip
        alike(made, checked)


def test_a_group_and_a_report():
    pins = {"a": PolicyPin(version=3, digest="")}
    command = c.PlayGroups(pool="p", epoch=2, origin=Origin.TRAIN, groups=(), pins=pins, sampling_seed=0)
    made = facts.settled(9, command, 4, 1.5, 2.5, (), {"a": 3}, part=False)
    checked = e.GroupSettled(
        draw=4, origin=Origin.TRAIN, epoch=2, command_no=9, episodes=(), started_at=1.5, finished_at=2.5,
        versions={"a": 3}, part=False,
    )  # fmt: skip
    alike(made, checked)
    asked = {"a": e.RequestedTurns(waiting=1, in_flight=2)}
    made = facts.demand(asked, {1: 2}, {1: 1}, {1: 300})
    alike(made, e.DemandReported(worker="virtual", policies=asked, engines={1: 2}, queued={1: 1}, cache={1: 300}))


@pytest.mark.parametrize("workload", ["hub", "long_tail"])
def test_every_fact_and_command_of_a_run_stands_a_look(workload: str):
    failing = {"spec": {"batch": SMALL}, "workload": {"failure": 0.2}}
    cluster = alone(compose(workload, "roll_flash" if workload == "long_tail" else "flexmarl", failing))
    seen = set()

    def look(now, fact, decision):
        for one in (fact, *(numbered.command for numbered in decision.commands)):
            seen.add(type(one))
            alike_by_value = type(one).model_validate(one.model_dump())
            assert repr(one) == repr(alike_by_value)

    cluster.driver.heard = look
    while len(cluster.log.stepped) < 2:
        assert cluster.clock.play()
    assert {e.GroupSettled, c.CutMicroBatch, c.PlayGroups} <= seen
    assert (e.DemandReported in seen) is (workload == "hub")


def test_a_clock_counts_what_it_did():
    clock, done = Clock(), []
    for number in range(3):
        clock.at(float(number), done.append, number)
    clock.after(1.0, lambda: clock.after(5.0, done.append, 9))
    for count in range(1, 6):
        assert clock.step()
        assert clock.events == count
    assert not clock.step()
    assert (clock.events, done) == (5, [0, 1, 2, 9])


class Asked(Router[LeastLoadedOptions]):
    """The same choice, asked for in full."""

    def choose(self, request: RouteRequest, engines: list[EngineLoad]) -> Choice:
        return LeastLoaded(self.options).choose(request, engines)


def test_the_short_way_to_the_least_loaded_engine_is_the_routers():
    chosen = []
    for router in (LeastLoaded(LeastLoadedOptions()), Asked(LeastLoadedOptions())):
        clock, fleet, ends = Clock(), SimulatedFleet(router), []
        for lease in (3, 1, 2):
            engine = SimulatedEngine(clock, Trace(), EngineModel(token=0.1, slots=2), lease)
            fleet.add(engine)
            engine.held.take("a", 0, ())
        for number in range(12):
            turn = SimulatedTurn("a", 0, "", 10.0, 1 + 7 * number % 5, ends.append)
            assert fleet.send(turn)
            chosen.append(turn.engine.name)
            clock.step()
    assert chosen[:12] == chosen[12:]
    assert len(set(chosen)) == 3
