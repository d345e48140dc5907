"""Turn barriers, redundancy in two directions and long rounds, against arithmetic over the same draws."""

from collections.abc import Mapping
from typing import Any

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.simulator import Workload, simulate
from flexmarl.simulator.published import counted, load_tables, reproduce
from flexmarl.simulator.scenarios.chance import mixed
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario

pytestmark = pytest.mark.slow

MEMBERS, TURNS = 3, 4
PLAIN: dict[str, Any] = {
    "spec": {
        "agents": {"solver": {}},
        "environment": {"type": "arithmetic"},
        "batch": {"tasks_per_step": 4, "episodes_per_task": MEMBERS, "micro_batch_groups": 1, "rollout_groups": 4},
        "resources": {"rollout_devices": 1, "training_devices": 1},
    },
    "workload": {
        "stages": [["solver"]],
        "rounds": TURNS,
        "each": {"prompt": 0, "reply": 1},
        "environment": {"mean": 10, "sigma": 5},
    },
    "machine": {"engine": {"token": 0.001, "batch": 1e9, "slots": 999, "prefill": 1e9}},
    "warm_up": 0,
    "steps": 1,
}
SLACK = 0.2
"""Seconds that engines and the platform's own delays add to the sums below, at most."""


def played(*, preset: str = "sync", seed: int = 5, **mechanisms: Any) -> Scenario:
    return compose(PLAIN, preset, {"seed": seed, "spec": {"mechanisms": mechanisms}})


def waits(scenario: Scenario, groups: int, members: int) -> dict[tuple[int, int], list[float]]:
    """Return what the environment of each member takes, turn by turn."""
    workload: Workload = scenario.workload
    found = {}
    for draw in range(groups):
        for member in range(members):
            key = mixed(mixed(mixed(0, scenario.seed), draw), member)
            keys = [mixed(key, 2 + 1000 * turn) for turn in range(1, TURNS + 1)]
            found[draw, member] = [workload.environment.draw(one) for one in keys]
    return found


def settled(drawn: Mapping[tuple[int, int], list[float]], groups: int, needed: int) -> list[float]:
    """Return when each group has the members it needs, in order of time."""
    members = {draw: sorted(sum(own) for (of, _), own in drawn.items() if of == draw) for draw in range(groups)}
    return sorted(own[needed - 1] for own in members.values())


def test_with_turns_together_each_turn_takes_as_long_as_its_slowest_environment():
    own, together = played(), played(parallel={"turns": "together"})
    drawn = waits(own, 4, MEMBERS)
    assert simulate(own).figures()["rollout_s"] == pytest.approx(max(map(sum, drawn.values())), abs=SLACK)
    barriers = sum(max(one[turn] for one in drawn.values()) for turn in range(TURNS))
    assert simulate(together).figures()["rollout_s"] == pytest.approx(barriers, abs=SLACK)


def test_a_barrier_holds_the_episodes_of_one_command():
    together = played(parallel={"turns": "together"})
    halves = together.model_copy(
        update={"spec": together.spec.model_copy(
            update={"batch": together.spec.batch.model_copy(update={"rollout_groups": 2})}
        )}
    )  # fmt: skip
    drawn = waits(together, 4, MEMBERS)
    sums = [
        sum(max(own[turn] for (draw, _), own in drawn.items() if draw // 2 == half) for turn in range(TURNS))
        for half in (0, 1)
    ]
    assert simulate(halves).figures()["rollout_s"] == pytest.approx(max(sums), abs=SLACK)


def test_what_episodes_do_together_is_not_played_as_a_whole():
    with pytest.raises(SpecProblems, match="/granularity: episode cannot simulate turns: together; set turn"):
        compose(PLAIN, "sync", {"granularity": "episode", "spec": {"mechanisms": {"parallel": {"turns": "together"}}}})


def test_a_step_needs_so_many_groups_of_so_many_members():
    extra = {"type": "extra_groups", "extra": 2, "extra_members": 1}
    scenario = played(redundancy=extra)
    expected = settled(waits(scenario, 6, MEMBERS + 1), 6, MEMBERS)[3]
    assert simulate(scenario).figures()["rollout_s"] == pytest.approx(expected, abs=SLACK)


@pytest.mark.parametrize(
    ("name", "freedom"),
    [("roll_env_async", 1), ("roll_redundancy", 0), ("rollart_environments", 2)],
)
def test_what_is_published_of_barriers_and_redundancy_is_reached(name: str, freedom: int):
    own = load_tables()[name]
    outcome = reproduce(own)
    assert not outcome.failed
    assert {cell.standing for cell in outcome.cells.values()} <= {"reached", "fitted"}
    assert max(abs(cell.error) for cell in outcome.cells.values()) < 0.15
    assert counted(own).free == freedom


def test_long_rounds_shorten_the_others_and_train_what_these_left():
    """Two of six groups wait after each short round, so every third round is long and plays four of them."""
    extra = {"type": "extra_groups", "extra": 2, "surplus": "defer"}
    changes = {"steps": 6, "workload": {"environment": {"slow_share": 0.04, "slow": 100}}}
    deferred = compose(PLAIN, "sync", changes | {"spec": {"mechanisms": {"redundancy": extra}}})
    report, plain = simulate(deferred), simulate(compose(PLAIN, "sync", changes))
    first = settled(waits(deferred, 6, MEMBERS), 6, MEMBERS)
    assert report.rollouts[0] == pytest.approx(first[3], abs=SLACK)
    assert report.figures()["lag"] == 0.0
    assert sum(report.rollouts) < sum(plain.rollouts)
