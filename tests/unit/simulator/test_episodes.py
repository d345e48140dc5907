"""Episodes that are played as a whole: against arithmetic, and against the same runs played turn by turn."""

from typing import Any

import numpy as np
import pytest

from flexmarl.algorithms.routing import least_loaded
from flexmarl.contracts.resolve import resolve
from flexmarl.simulator import SimulationError, SimulationReport, simulate
from flexmarl.simulator.devices.clock import Clock
from flexmarl.simulator.devices.engine_pools import Pools
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.devices.fleet import SimulatedFleet
from flexmarl.simulator.devices.trace import Trace
from flexmarl.simulator.rollout.flow import TurnFlow
from flexmarl.simulator.runs import alone
from flexmarl.simulator.scenarios.draws import Scripts, Sheet, Sheets
from flexmarl.simulator.scenarios.scenario import EngineModel, Machine, Scenario, Workload, scenario

MODEL = EngineModel(token=0.01, batch=10.0, prefill=1000.0, slots=4)


class Bench:
    """Engines that hold version 0 of policy `a`; episodes of one stage with a wait behind it."""

    def __init__(self, engines: int = 1, model: EngineModel = MODEL) -> None:
        self.fleet = SimulatedFleet(least_loaded)
        self.engines = [SimulatedEngine(Clock(), Trace(), model, lease) for lease in range(engines)]
        for engine in self.engines:
            engine.held.take("a", 0, ())
            self.fleet.add(engine)
        self.pools = Pools(self.fleet, model)
        self.flow = TurnFlow(np.array([[0]]), 1, self.pools, model.prefill)
        self.now = 0.0

    def ask(self, *tokens: float, prompt: float = 0.0, version: int = 0, wait: float = 0.0) -> int:
        stages = len(tokens)
        prompts, replies = np.full((stages, 1), prompt), np.array(tokens)[:, None]
        sheet = Sheet(0, prompts, replies, np.full(stages, wait), [0], reward_s=0.0, score=0.0)
        return self.flow.begin(sheet, [self.pools.use("a", version)], self.now)

    def play(self, until: float, tick: float = 0.01) -> dict[int, float]:
        ended: dict[int, float] = {}
        while self.now < until:
            for row, when in self.flow.advance(self.now, self.now + tick):
                ended[row] = when
                self.flow.end(row)
            self.now += tick
        return ended


def test_an_episode_alone_takes_its_prompts_its_tokens_and_its_waits():
    bench = Bench()
    row = bench.ask(100, 50, prompt=200, wait=0.7)
    assert bench.play(4.0, tick=0.9) == pytest.approx({row: 2 * 0.2 + 1.0 + 0.5 + 2 * 0.7})
    assert bench.flow.tokens == pytest.approx(150)
    assert bench.flow.changes == 3 * 2  # each turn was asked and answered, and its wait was over
    assert len(bench.flow) == 0


def test_neighbours_slow_each_other_while_they_are_there():
    bench = Bench()
    long, short = bench.ask(100), bench.ask(50)
    both = 50 * 0.01 * 1.1
    assert bench.play(2.0) == pytest.approx({short: both, long: both + 0.5}, abs=0.01)


def test_episodes_are_spread_over_engines_as_evenly_as_they_can():
    bench = Bench(engines=2)
    rows = [bench.ask(100) for _ in range(3)]
    # Of three on two engines two meet each other and one is alone: on average they meet 5 / 3.
    assert bench.play(3.0) == pytest.approx(dict.fromkeys(rows, 1.0 + (5 / 3 - 1) / 10), abs=0.01)


def test_who_finds_no_slot_waits_for_one():
    bench = Bench(model=MODEL.model_copy(update={"slots": 1}))
    first, second = bench.ask(100), bench.ask(100)
    assert bench.play(3.0) == pytest.approx({first: 1.0, second: 2.0}, abs=0.02)


def test_who_does_not_fit_into_the_cache_waits_for_room():
    bench = Bench(model=MODEL.model_copy(update={"kv_tokens": 250.0}))
    rows = [bench.ask(100) for _ in range(4)]
    both = 100 * 0.011
    expected = dict(zip(rows, (both, both, 2 * both, 2 * both), strict=True))
    assert bench.play(4.0) == pytest.approx(expected, abs=0.03)


def test_prompts_are_computed_one_after_the_other_on_each_engine():
    bench = Bench(engines=2)
    rows = [bench.ask(1, prompt=1000) for _ in range(4)]
    ended = bench.play(4.0)
    assert [ended[row] for row in rows] == pytest.approx([1.0, 1.5, 2.0, 2.5], abs=0.02)


def test_nothing_is_made_while_no_engine_holds_the_weights():
    bench = Bench()
    row = bench.ask(100, version=1)
    bench.play(2.0)
    assert bench.flow.tokens == 0
    assert [counts.tolist() for counts in bench.flow.counts()] == [[0], [1]]
    bench.engines[0].held.take("a", 1, ())
    assert bench.play(4.0) == pytest.approx({row: 3.0}, abs=0.02)


def test_reading_the_cache_and_arithmetic_bound_a_step():
    bench = Bench(model=MODEL.model_copy(update={"cell": 1e-4}))
    row = bench.ask(100, prompt=200)
    read = sum(1e-4 * (200 + token) for token in range(100))
    assert bench.play(6.0) == pytest.approx({row: 0.2 + 100 * 0.01 + read}, rel=0.01)
    bench = Bench(model=MODEL.model_copy(update={"compute": 0.02}))
    rows = [bench.ask(100), bench.ask(100)]
    assert bench.play(6.0) == pytest.approx(dict.fromkeys(rows, 100 * 2 * 0.02), rel=0.01)


def test_an_abandoned_episode_leaves_its_slot_to_others():
    bench = Bench(model=MODEL.model_copy(update={"slots": 1}))
    gone, stays = bench.ask(100), bench.ask(100)
    bench.play(0.5)
    bench.flow.drop(gone)
    assert bench.play(2.0) == pytest.approx({stays: 1.5}, abs=0.02)
    assert bench.flow.tokens == pytest.approx(150, abs=1)


def test_an_abandoned_episode_waits_for_no_slot_any_more():
    bench = Bench(model=MODEL.model_copy(update={"slots": 1}))
    plays, gone, stays = (bench.ask(100) for _ in range(3))
    bench.play(0.5)
    bench.flow.drop(gone)
    assert bench.play(2.5) == pytest.approx({plays: 1.0, stays: 2.0}, abs=0.02)


def test_whoever_needs_less_room_overtakes_nobody():
    bench = Bench(model=MODEL.model_copy(update={"kv_tokens": 250.0}))
    first, large = bench.ask(100), bench.ask(200)
    bench.play(0.5)
    small = bench.ask(50)
    ended = bench.play(4.0)
    both = 50 * 0.011
    assert ended == pytest.approx({first: 1.0, small: 1.0 + both, large: 1.0 + both + 1.5}, abs=0.03)


def test_a_device_may_stand_for_many_engines():
    many = Bench(model=MODEL.model_copy(update={"replicas": 4}))
    rows = [many.ask(100, prompt=100) for _ in range(8)]
    alike = Bench(engines=4)
    others = [alike.ask(100, prompt=100) for _ in range(8)]
    ended, apart = many.play(3.0), alike.play(3.0)
    assert [ended[row] for row in rows] == pytest.approx([apart[row] for row in others])


def test_a_sheet_says_what_the_script_of_its_key_says():
    each = {"reply": {"median": 90, "sigma": 1}, "prompt": {"median": 50, "sigma": 1}}
    stages = [["a"], ["b", "a"], ["b"]]
    document = {
        "stages": stages,
        "rounds": {"median": 2, "sigma": 0.5, "most": 4},
        "each": each,
        "environment": {"mean": 2},
    }
    workload = Workload.model_validate(document)
    roles = {"a": 0, "b": 1}
    scripts, sheets = Scripts(workload, roles, 3), Sheets(workload, roles, 3)
    for member in range(8):
        script, sheet = scripts.script(5, member, 8, 1, 5), sheets.script(5, member, 8, 1, 5)
        turns = list(script.turns)
        columns = [(stage, column) for stage in range(len(script.waits)) for column in range(len(stages[stage % 3]))]
        assert [(p, r) for _, _, p, r in turns] == [(sheet.prompts[c], sheet.replies[c]) for c in columns]
        assert sheet.tokens == [sum(r for role, _, _, r in turns if role == name) for name in ("a", "b")]
        assert (script.key, script.waits, script.score) == (sheet.key, sheet.waits.tolist(), sheet.score)


def told(preset: str, **changes: Any) -> Scenario:
    batch = {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 4, "rollout_groups": 4}
    spec = {"batch": batch, "resources": {"rollout_devices": 8}, "mechanisms": changes.pop("mechanisms", {})}
    resolved = resolve(spec, preset=preset, template="reference_game")
    workload = {"stages": [["speaker"], ["listener"]], "rounds": 2, "environment": {"mean": 2, "sigma": 1}} | changes
    return scenario({"spec": resolved.document, "workload": workload, "steps": 3})


def whole(given: Scenario) -> Scenario:
    return given.model_copy(update={"granularity": "episode", "tick": 0.25})


def test_rows_are_given_back():
    cluster = alone(whole(told("flexmarl", mechanisms={"redundancy": {"type": "extra_members", "extra": 2}})))
    while len(cluster.log.stepped) < 3:
        assert cluster.clock.play()
        assert len(cluster.playing._flow) == len(cluster.playing._rows)
    assert cluster.log.trained[-1] > 0


def compared(preset: str, **changes: Any) -> tuple[SimulationReport, SimulationReport]:
    given = told(preset, **changes)
    return simulate(given), simulate(whole(given))


@pytest.mark.parametrize("preset", ["flexmarl", "one_step_off"])
def test_a_run_takes_as_long_as_turn_by_turn(preset: str):
    turns, fleet = compared(preset)
    assert fleet.step_s == pytest.approx(turns.step_s, rel=0.03)
    assert fleet.tokens_s == pytest.approx(turns.tokens_s, rel=0.03)
    assert fleet.trained_share == pytest.approx(turns.trained_share, abs=0.02)
    assert fleet.events < turns.events


@pytest.mark.parametrize(
    "mechanisms",
    [
        {"redundancy": {"type": "extra_members", "extra": 1}},
        {"redundancy": {"type": "extra_environments", "extra": 2}},
        {"parallel": {"episodes": 12}},
    ],
)
def test_groups_are_played_as_turn_by_turn(mechanisms: dict[str, Any]):
    turns, fleet = compared("flexmarl", mechanisms=mechanisms, failure=0.1)
    assert fleet.step_s == pytest.approx(turns.step_s, rel=0.04)
    assert fleet.tokens == pytest.approx(turns.tokens, rel=0.05)


def test_what_turns_go_through_one_by_one_is_refused():
    with pytest.raises(SimulationError, match="in_flight: finish or discard"):
        compared("bounded_async")
    slow = Scenario.model_validate(told("flexmarl").model_dump() | {"faults": {"slow": [{"device": 7, "factor": 2}]}})
    with pytest.raises(SimulationError, match=r"faults\.slow: .* from 8, or set granularity: turn"):
        simulate(whole(slow))
    with pytest.raises(ValueError, match=r"machine\.host .* set turn"):
        Scenario.model_validate(whole(told("flexmarl")).model_dump() | {"machine": {"host": {"cores": 2}}})
    given = told("flexmarl").model_copy(update={"machine": Machine(engine=EngineModel(cache="grown"))})
    with pytest.raises(SimulationError, match="or cache: reserved"):
        simulate(whole(given))


def test_nobody_gets_a_slot_before_it_is_asked():
    """One slot; within one long tick the first gives it back long before the second wants it."""
    bench = Bench(model=MODEL.model_copy(update={"slots": 1}))
    bench.ask(10, 10, wait=0.6)
    late = bench.ask(10, 60, wait=3.5)
    bench.play(0.3)
    assert bench.play(20.0, tick=4.0)[late] == pytest.approx(0.2 + 3.5 + 0.6 + 3.5, abs=0.03)


def test_a_pool_whose_last_episode_is_abandoned_has_its_slots_back():
    cluster = alone(whole(told("flexmarl")))
    while cluster.hosting.made() < 500.0:
        assert cluster.clock.step()
    tokens = [cluster.playing.break_off(no)[1] for no in cluster.playing.open_commands()]
    assert sum(tokens) == pytest.approx(cluster.hosting.made())
    assert [slots for _, slots, _ in cluster.playing.taken()] == [0.0] * len(cluster.playing._pools)


@pytest.mark.parametrize(
    "faults",
    [
        {"children": [{"at": 40, "device": 0}, {"at": 60, "device": 1}]},
        {"node_devices": 4, "nodes": [{"at": 40, "node": 0, "back": 10}]},
        {"slow": [{"device": 8, "factor": 3.0, "since": 20}]},
        {"spot": [{"at": 30, "devices": 4}, {"at": 70, "devices": 8}], "notice": 5},
        {"workers": [{"at": 35, "share": 0.5}]},
    ],
    ids=["children", "node", "slow", "spot", "workers"],
)
def test_faults_cost_as_much_as_turn_by_turn(faults: dict[str, Any]):
    given = Scenario.model_validate(told("flexmarl").model_dump() | {"faults": faults})
    turns, fleet = simulate(given), simulate(whole(given))
    assert fleet.step_s == pytest.approx(turns.step_s, rel=0.05)
    assert fleet.lost_s == pytest.approx(turns.lost_s, rel=0.05)
    assert fleet.replayed_tokens == pytest.approx(turns.replayed_tokens, rel=0.1)
    assert len(fleet.losses) == len(turns.losses)


def test_whole_episodes_that_nobody_can_answer_any_more_come_to_no_end_in_time():
    faults = {"node_devices": 8, "nodes": [{"at": 30, "node": 0}], "replace": None}
    given = Scenario.model_validate(told("flexmarl").model_dump() | {"faults": faults})
    with pytest.raises(SimulationError, match="no events are left"):
        simulate(whole(given))
