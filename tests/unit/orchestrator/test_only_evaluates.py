"""Runs that train nothing: their held-out tasks are played once, each as often as was asked for, and that is all."""

import pytest

from flexmarl.contracts.events import Verb
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.contracts.wire import Origin
from tests.unit.orchestrator.asking import freeze
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started

FAULTS = Faults(twice=0.1, child_death=0.02, uncommitted=0.05, refused=0.02, zombie=0.1)
FROZEN = {role: {"trainable": False} for role in make_spec().agents}


def only_evaluates(tasks=6, attempts=3, **budget):
    return make_spec(
        agents=FROZEN,
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


def test_a_frozen_evaluation_keeps_what_settled_and_plays_the_rest_once():
    cluster = started(only_evaluates(tasks=12))
    cluster.run(until=lambda one: one.core.state.totals.eval_episodes.finished >= 9)
    freeze(cluster, hold_s=0)
    cluster.run(until=lambda one: one.status is RunStatus.PAUSED and not one.core.state.fleet.leases)
    before = list(cluster.plays)
    assert 0 < len(before) < 12
    cluster.verb(Verb.RESUME)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert sorted(set(cluster.plays)) == sorted(cluster.plays), "a task was played twice"
    assert cluster.core.state.totals.eval_episodes.finished == 36


def test_without_a_finished_episode_it_fails_says_why_and_a_retry_plays_anew():
    cluster = started(only_evaluates(tasks=2), faults=Faults(episode_failure=1.0))
    cluster.run()
    assert (cluster.status, cluster.core.state.lifecycle.reason) == (RunStatus.FAILED, RunReason.EPISODES_FAILED)
    assert "environment: step" in cluster.core.state.lifecycle.reason_text
    assert "retry" in cluster.core.state.lifecycle.reason_text
    cluster.faults.episode_failure = 0.0
    cluster.verb(Verb.RETRY)
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    assert cluster.core.state.totals.eval_episodes.finished == 6


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"budget": {"train_steps": 0}}, "nothing_to_step"),
        ({"agents": FROZEN}, "nothing_to_train"),
        ({"evaluation": {"attempts": 2}}, "same_attempts"),
    ],
)
def test_a_run_that_could_do_nothing_is_refused(changes, code):
    assert [problem.code for problem in broken_rules(make_spec(**changes))] == [code]
