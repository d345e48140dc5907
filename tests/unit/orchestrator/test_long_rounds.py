"""Tasks of surplus groups wait until they make a step of their own, which waits for all it plays."""

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started

STEPS, TASKS, EXTRA, MEMBERS = 9, 4, 3, 3


def tail_batched(**more):
    redundancy = {"type": "extra_groups", "extra": EXTRA, "extra_members": 1, "surplus": "defer"}
    changes = {
        "mechanisms__redundancy": redundancy,
        "batch__tasks_per_step": TASKS,
        "batch__episodes_per_task": MEMBERS,
        "batch__micro_batch_groups": 2,
        "batch__rollout_groups": 1,
        "budget__train_steps": STEPS,
    }
    return make_spec(**(changes | more))


def rounds(cluster):
    """Return what each cohort was asked to play: draw -> order."""
    found = {}
    for command in cluster.commands("play_groups"):
        if command.origin == "train":
            found.setdefault(command.cohort, {}).update({group.draw: group for group in command.groups})
    return found


def in_a_long_round(cluster):
    return any(cohort.long_round and cohort.open for cohort in cluster.core.state.cohorts)


def is_long(orders):
    return len(orders) == TASKS


def test_tasks_left_over_make_a_long_round_that_plays_them_all_to_the_end():
    cluster = started(tail_batched(), seed=3).run()
    assert cluster.status is RunStatus.COMPLETED
    asked = rounds(cluster)
    assert [no for no in range(STEPS) if is_long(asked[no])] == [2, 4, 6]  # 3, 6-4, 5-4, 4-4, 3, 6 tasks wait
    trained = {s.draw for mb in cluster.commands("cut_micro_batch") for s in mb.samples}
    waiting = []
    for no in range(STEPS):
        orders = asked[no]
        seeds = {order.task_seed for order in orders.values()}
        if is_long(orders):
            due, waiting = waiting[:TASKS], waiting[TASKS:]
            assert seeds == set(due), "a long round plays what waited longest"
            assert {(order.members, order.enough) for order in orders.values()} == {(MEMBERS, 0)}
            assert orders.keys() <= trained
        else:
            assert {(order.members, order.enough) for order in orders.values()} == {(MEMBERS + 1, MEMBERS)}
            waiting += [orders[draw].task_seed for draw in sorted(orders.keys() - trained)]
    assert max(cluster.lags) == 0
    assert cluster.metrics["groups/deferred", "", "last", 2] == 2 * EXTRA
    assert cluster.metrics["groups/deferred", "", "last", 3] == 2 * EXTRA - TASKS


@pytest.mark.parametrize("bound", [0, 1])
def test_nothing_is_lost_or_counted_twice_whatever_breaks(bound):
    for seed in range(3):
        faults = Faults(twice=0.2, child_death=0.01 * seed, uncommitted=0.02, episode_failure=0.02)
        lag = {"bound": bound, "at_admission": "wait"}
        spec = tail_batched(mechanisms__lag_policy=lag, batch__min_members=2)
        cluster = started(spec, seed=seed, faults=faults, round_trip=seed == 2)
        cluster.run(until=in_a_long_round)
        cluster.tell(e.RunVerb(verb=e.Verb.PAUSE, mode=e.PauseMode.FREEZE, actor="ada"))
        cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
        cluster.verb(e.Verb.RESUME)
        cluster.run()
        state = cluster.core.state
        assert (cluster.status, state.step) == (RunStatus.COMPLETED, STEPS), state.lifecycle.reason_text
        episodes = state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
        assert max(cluster.lags) <= bound
