"""Repacking in the simulator: what it gains, what it costs, and that nothing is lost by it."""

from typing import Any

import pytest

from flexmarl.contracts import commands as c
from flexmarl.simulator.reporting.invariants import RunWatch, broken
from flexmarl.simulator.runs import alone, examine, long_enough, simulate
from flexmarl.simulator.scenarios.library import compose

SPEC = {
    "agents": {"solver": {}},
    "environment": {"type": "arithmetic"},
    "batch": {"tasks_per_step": 16, "episodes_per_task": 4, "micro_batch_groups": 16},
    "resources": {"rollout_devices": 4},
}
REPLY = {"median": 800, "sigma": 1.0, "most": 16000}
CASE = {
    "spec": SPEC,
    "workload": {
        "stages": [["solver"]],
        "each": {"prompt": 200, "reply": {"median": 800, "sigma": 1.0, "most": 16000}},
    },
    "machine": {"trainer": {"token": 0.0, "micro_batch": 0.0, "step": 0.0}},
    "warm_up": 1,
    "steps": 4,
}
STATIC = {"spec": {"mechanisms": {"mover": {"type": "static"}}}}


def watched(changes: dict[str, Any], steps: int) -> RunWatch:
    cluster = alone(long_enough(compose(CASE, "laminar", changes)))
    watch = RunWatch.over(cluster)
    while len(cluster.log.stepped) < steps and not cluster.driver.ended and cluster.clock.play():
        pass
    return watch


def test_gathering_what_is_left_frees_engines_for_newer_weights() -> None:
    without, (gathered, findings) = simulate(compose(CASE, "laminar", STATIC)), examine(compose(CASE, "laminar"))
    assert not findings, "nothing goes to and fro, and nobody waits for nothing"
    assert gathered.moves > 0
    assert without.moves == 0
    assert gathered.step_s < 0.9 * without.step_s


def test_what_moves_pays_for_its_prefix_again() -> None:
    dear = {"machine": {"engine": {"prefill": 400.0}}}
    gathered, cheap = simulate(compose(CASE, "laminar", dear)), simulate(compose(CASE, "laminar"))
    before = (
        simulate(compose(CASE, "laminar", {**STATIC, **dear})).step_s
        / simulate(compose(CASE, "laminar", STATIC)).step_s
    )
    assert gathered.step_s / cheap.step_s > 1.1 * before, "prompts alone do not explain it"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"faults": {"rates": [{"use": "engine", "every": 60}], "workers": [{"at": 60, "share": 0.5}]}},
        {"workload": {"rounds": 3, "environment": {"mean": 3, "sigma": 1}}},
        {"machine": {"engine": {"slots": 4}}, "spec": {"mechanisms": {"mover": {"below": 3}}}},
    ],
)
def test_nothing_is_lost_and_no_version_mixed(changes: dict[str, Any]) -> None:
    watch = watched(changes, 5)
    assert not broken(watch)
    orders = [x.command for x in watch.commands.values() if isinstance(x.command, c.UnloadPolicy)]
    assert any(order.hand_over for order in orders), "somebody was emptied"
    assert all(turn.version == turn.pinned for turn in watch.turns.values() if turn.phase == "ended" and turn.made)


def test_whoever_takes_over_never_lets_anybody_wait() -> None:
    """Engines have as many slots as are filled, so a reply that was moved would queue if one was filled beyond."""
    watch = watched({"machine": {"engine": {"slots": 32}}, "spec": {"mechanisms": {"mover": {"below": 32}}}}, 1)
    cluster, moved = watch.cluster, 0
    waited = 0
    carry_out = cluster._unload

    def unload(no: int, order: c.UnloadPolicy) -> None:
        nonlocal moved, waited
        carry_out(no, order)
        destination = cluster.playing.engines.get(order.to)
        if order.hand_over and destination is not None:
            moved += 1
            waited += destination.waiting

    cluster._unload = unload
    while len(cluster.log.stepped) < 5 and cluster.clock.play():
        pass
    assert moved > 0
    assert waited == 0
