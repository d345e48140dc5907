"""Named checks against decisions that are broken for real: each is found by its name; the unbroken core has none."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from flexmarl.algorithms.movers import Move, Snapshot
from flexmarl.algorithms.movers.board import Board
from flexmarl.algorithms.movers.demand import DemandMover
from flexmarl.contracts.resolve import load_presets
from flexmarl.orchestrator.allocation import allocator
from flexmarl.orchestrator.allocation.types import AllocationSnapshot as Standings
from flexmarl.orchestrator.cohorts import cutting, overlapping
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.state.cohort import Cohort, PendingGroup
from flexmarl.orchestrator.state.lag import Verdict
from flexmarl.simulator.devices.engines import SimulatedEngine
from flexmarl.simulator.reporting.checks import SchedulingFault
from flexmarl.simulator.rollout.groups import EpisodeSlots
from flexmarl.simulator.runs import examine
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario

BATCH = {"tasks_per_step": 6, "episodes_per_task": 3, "micro_batch_groups": 1, "rollout_groups": 1}
TWO = {"agents": {"planner": {}, "coder": {}}, "environment": {"type": "arithmetic"}, "batch": BATCH}


def moving() -> Scenario:
    """Two policies that are asked in turns, on four engines with one place each."""
    spec = TWO | {"resources": {"rollout_devices": 4, "engine_policies": 1}}
    load = {"stages": [["planner"], ["coder"]], "rounds": 4, "each": {"prompt": 100, "reply": 300}}
    changes = {"spec": {"mechanisms": {"mover": "demand"}}, "steps": 2}
    return compose({"spec": spec, "workload": load}, "flexmarl", changes)


def ahead() -> Scenario:
    """Cohorts may run ahead of a slow trainer."""
    machine = {"trainer": {"token": 0.01}}
    load = {"stages": [["planner"], ["coder"]], "each": {"prompt": 100, "reply": 300}}
    return compose({"spec": TWO, "workload": load, "machine": machine}, "bounded_async", {"steps": 3})


def tail() -> Scenario:
    """Groups settle in another order than that of their draws."""
    load = {"stages": [["planner"], ["coder"]], "each": {"prompt": 100, "reply": {"median": 400, "sigma": 1.5}}}
    return compose({"spec": TWO, "workload": load}, "flexmarl", {"steps": 3})


def crowded() -> Scenario:
    """Three policies on one trainer; two of them alone could keep it busy, group after group."""
    team = {"agents": {"planner": {}, "coder": {}, "critic": {}}, "environment": {"type": "arithmetic"}, "batch": BATCH,
            "resources": {"rollout_devices": 2, "training_devices": 1, "trainer_policies": 1}}  # fmt: skip
    load = {"stages": [["planner"], ["coder"], ["critic"]], "each": {"prompt": 100, "reply": 200},
            "roles": {"coder": {"reply": 2000}}}  # fmt: skip
    machine = {"trainer": {"token": 0.02, "swap": 1.0, "create": 1.0}}
    changes = {"spec": {"mechanisms": {"parallel": {"episodes": 3}}}, "steps": 2}
    return compose({"spec": team, "workload": load, "machine": machine}, "flexmarl", changes)


def moves_without_hysteresis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place goes to whoever has more turns at the moment, whatever moved last and whatever a load takes."""

    def eager(self: DemandMover, seen: Snapshot) -> list[Move]:
        board = Board(seen)
        by_turns = sorted(seen.policies, key=lambda name: (seen.policies[name].turns, name))
        out, into = by_turns[0], by_turns[-1]
        engine = board.engine_of(out, into)
        if engine is None or seen.policies[out].turns == seen.policies[into].turns:
            return []
        return [Move(engine, out, into, "disparity", "it has more turns")]

    monkeypatch.setattr(DemandMover, "moves", eager)


def admits_by_a_second_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the lag rule, no cohort begins while another one is trained."""
    may_start = overlapping.may_start

    def both(ctx: Context) -> Verdict:
        return Verdict(False, "a cohort is open") if ctx.state.cohorts else may_start(ctx)

    monkeypatch.setattr(overlapping, "may_start", both)


def cuts_first_in_first_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is cut only when every earlier draw has settled."""

    def strict(ctx: Context, cohort: Cohort) -> tuple[int, list[PendingGroup]] | None:
        part, size = cutting._slice(ctx, cohort)
        first = min(cohort.open, default=1 << 60)
        ready = sorted((group for group in cohort.pending if group.draw < first), key=lambda group: group.draw)
        if not ready or (len(ready) < size and cohort.times.settled_at is None):
            return None
        cohort.pending = [group for group in cohort.pending if group not in ready[:size]]
        cohort.groups.cut += len(ready[:size])
        return part, ready[:size]

    monkeypatch.setattr(cutting, "_next_by_arrival", strict)


def binds_the_shortest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer goes to whoever has least to do of those that wait."""

    def shortest(seen: Standings) -> list[str]:
        names = [name for name, standing in seen.policies.items() if standing.has_work and not standing.gang]
        return sorted(names, key=lambda name: (name == "coder", seen.policies[name].seconds))

    monkeypatch.setattr(allocator, "_waiting", shortest)


def busy() -> Scenario:
    """More episodes than slots: turns wait at their engines, round after round."""
    spec = TWO | {"resources": {"rollout_devices": 2}}
    load = {"stages": [["planner"], ["coder"]], "rounds": 4, "each": {"prompt": 100, "reply": 300}}
    machine = {"engine": {"slots": 2}}
    return compose({"spec": spec, "workload": load, "machine": machine}, "flexmarl", {"steps": 2})


def apart() -> Scenario:
    """Two episodes at once; environments take longer than replies."""
    load = {"stages": [["planner"], ["coder"]], "each": {"prompt": 100, "reply": 30},
            "environment": {"median": 8, "sigma": 1}}  # fmt: skip
    changes = {"spec": {"mechanisms": {"parallel": {"episodes": 2}}}, "steps": 1}
    return compose({"spec": TWO, "workload": load}, "flexmarl", changes)


def serves_last_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that finds no slot is put before those that wait."""
    monkeypatch.setattr(SimulatedEngine, "_place", lambda self, turn: 0)


def gives_places_back_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody begins before all that began together are done."""
    leave = EpisodeSlots.leave

    def both(self: EpisodeSlots) -> None:
        self._free -= 2  # more than there are, until the other one is done as well
        leave(self)
        self._free += 2
        if self._free == 2:
            self._free -= 1
            leave(self)

    monkeypatch.setattr(EpisodeSlots, "leave", both)


def _moves(spec: Mapping[str, Any]) -> bool:
    mover = spec["mechanisms"].get("mover", {})
    return isinstance(mover, Mapping) and mover.get("type") == "demand"


PLANTED: list[tuple[str, Callable[[], Scenario], Callable[[pytest.MonkeyPatch], None]]] = [
    ("ping_pong", moving, moves_without_hysteresis),
    ("double_throttle", ahead, admits_by_a_second_limit),
    ("head_of_line", tail, cuts_first_in_first_out),
    ("starvation", crowded, binds_the_shortest_first),
    ("starvation", busy, serves_last_come_first),
    ("double_throttle", apart, gives_places_back_together),
]


def found(scenario: Scenario) -> list[SchedulingFault]:
    return examine(scenario)[1]


@pytest.mark.parametrize(
    ("name", "scenario", "plant"), PLANTED, ids=[f"{name}-{made.__name__}" for name, made, _ in PLANTED]
)
def test_a_planted_fault_is_found_by_its_name(
    name: str, scenario: Callable[[], Scenario], plant: Any, monkeypatch: pytest.MonkeyPatch
):
    made = scenario()
    assert found(made) == [], "the unbroken core has no finding"
    plant(monkeypatch)
    findings = found(made)
    assert {one.name for one in findings} == {name}
    assert findings[0].since < findings[0].until
    assert findings[0].evidence
    assert findings[0].advice


MOVING = [name for name, one in load_presets().items() if _moves(one.spec)]


@pytest.mark.parametrize("workload", ["hub", "long_tail"])
@pytest.mark.parametrize("preset", MOVING)
def test_no_preset_with_a_mover_goes_to_and_fro(preset: str, workload: str):
    """Around a hub five policies whose turns come in phases, on ten engines that hold one each: what moves most."""
    assert "ping_pong" not in {one.name for one in found(compose(workload, preset, {"steps": 8}))}


def around_a_hub(preset: str, engines: int, steps: int, mover: Mapping[str, Any] | None = None) -> Scenario:
    """As many engines for five policies, of which each holds one."""
    mechanisms = {"mechanisms": {"mover": mover}} if mover else {}
    return compose("hub", preset, {"steps": steps, "spec": {"resources": {"rollout_devices": engines}, **mechanisms}})


@pytest.mark.full
@pytest.mark.parametrize("engines", [5, 6])
@pytest.mark.parametrize("preset", MOVING)
def test_no_preset_with_a_mover_goes_to_and_fro_where_each_policy_has_an_engine_or_little_more(
    preset: str, engines: int
):
    assert "ping_pong" not in {one.name for one in found(around_a_hub(preset, engines, 8))}


@pytest.mark.full
@pytest.mark.parametrize("preset", MOVING)
def test_with_fewer_engines_than_policies_places_go_round_whatever_the_mover(preset: str):
    """Four engines, five policies that every episode asks: whoever is asked and has no place is given one.

    This is no choice of a mover: where places stay (`static`) the same go round, move by move, and no run would end
    without. With five engines, one for each, none has to (the test above).
    """
    own, faults = examine(around_a_hub(preset, 4, 4))
    fixed, _ = examine(around_a_hub(preset, 4, 4, {"type": "static"}))
    assert {one.name for one in faults} <= {"ping_pong"}
    assert own.moves == fixed.moves > 4 * len(own.steps), "each step, and more often than once"
    assert own.step_s == fixed.step_s
