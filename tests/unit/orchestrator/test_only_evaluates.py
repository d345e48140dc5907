"""Runs that train nothing: their held-out tasks are played once, each as often as was asked for, and that is all."""

import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started

FAULTS = Faults(twice=0.1, child_death=0.02, uncommitted=0.05, refused=0.02, zombie=0.1)
FROZEN = {"trainable": False}


def only_evaluates(tasks=6, attempts=3, **budget):
    return make_spec(
        agents={"guesser": FROZEN, "hinter": FROZEN},
        mechanisms={"allocation": {"type": "colocated"}},
        evaluation={"tasks": tasks, "attempts": attempts, "greedy": False},
        checkpoints={"keep_best": 0},
        budget={"train_steps": 0, **budget},
    )


@pytest.mark.parametrize("seed", range(6))
def test_each_task_is_played_as_often_as_asked_and_nothing_is_stepped(seed):
    cluster = started(only_evaluates(), seed=seed, faults=FAULTS if seed else None)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    episodes = cluster.core.state.totals.eval_episodes
    assert episodes.finished + episodes.failed >= 18
    assert not {"accumulate", "optimizer_step", "write_checkpoint"} & set(cluster.kinds())
    assert {order.origin for order in cluster.commands("play_groups")} == {Origin.EVAL}
    assert cluster.core.state.step == 0
