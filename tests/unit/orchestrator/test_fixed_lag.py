"""Ordered runs whose cohorts overlap: what is played and trained is the same, whenever it is played and trained."""

import random

import pytest

from flexmarl.contracts.events import PauseMode, Verb
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import Origin
from tests.unit.orchestrator.asking import account, ask
from tests.unit.orchestrator.fake_cluster import FakeCluster, make_spec
from tests.unit.orchestrator.fake_parts import Faults

STEPS = 8
DELAYED = {
    "mechanisms__ordered": True,
    "mechanisms__publication": "delayed",
    "mechanisms__lag_policy__bound": 1,
    "budget__train_steps": STEPS,
}
CHOSEN = {"sampling__task_sampler": {"type": "vade", "tasks": 15}}
AGAIN = {"sampling__group_filter": {"type": "dynamic_sampling", "draw_limit": 3}}
TROUBLE = Faults(twice=0.2, child_death=0.02, lease_end=0.01, recall=0.05, uncommitted=0.05)


class SameEpisodes(FakeCluster):
    """Plays a draw alike, whenever it is played."""

    def settle(self, number, command, group, members=None):
        by_time, self.rng = self.rng, random.Random(group.draw)
        settled = super().settle(number, command, group, members)
        self.rng = by_time
        return settled


def played(seed, faults=None, pauses=(), **more):
    """Run to the end; a pause at each of some numbers of decisions, and resumed when it rests."""
    cluster = SameEpisodes(make_spec(**DELAYED, **more), seed=seed, faults=faults or Faults())
    cluster.verb(Verb.START)
    for at, mode in pauses:
        cluster.run(until=lambda x, at=at: len(x.decisions) >= at and x.status is RunStatus.RUNNING)
        if cluster.status is RunStatus.RUNNING:
            ask(cluster, Verb.PAUSE, mode=mode, hold_s=0)
            cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
            ask(cluster, Verb.RESUME)
    cluster.run()
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, STEPS)
    account(cluster)
    return cluster


def work_of(cluster):
    """Return what was played under which weights, and what each step of a policy was made of, in its order."""
    orders = [c for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN]
    groups = {
        (group.draw, group.task_seed, policy, pin.version)
        for order in orders
        for group in order.groups
        for policy, pin in order.pins.items()
    }
    cuts = {}
    for cut in cluster.commands("cut_micro_batch"):
        rows = [(s.draw, s.member, s.role, s.advantages, s.weight) for s in cut.samples]
        cuts.setdefault((cut.cohort, cut.ref.policy), []).append(rows)
    return groups, cuts


def lags_of(cluster):
    """Return by how many steps the weights that each cohort plays are behind."""
    orders = [c for c in cluster.commands("play_groups") if c.origin is Origin.TRAIN]
    return {(order.cohort, order.cohort - pin.version) for order in orders for pin in order.pins.values()}


@pytest.mark.parametrize("more", [{}, CHOSEN, AGAIN], ids=["drawn", "chosen", "drawn again"])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_facts_trains_the_same(seed, more):
    expected = work_of(played(100, **more))
    assert work_of(played(seed, **more)) == expected
    assert work_of(played(seed, TROUBLE, **more)) == expected


@pytest.mark.parametrize("more", [{}, CHOSEN], ids=["drawn", "chosen"])
@pytest.mark.parametrize("mode", PauseMode)
@pytest.mark.parametrize("seed", range(4))
def test_a_pause_between_two_cohorts_changes_neither_weights_nor_tasks(seed, mode, more):
    """A cohort that could not start beside the one before it plays what it would have played."""
    pauses = [(at, mode) for at in random.Random(seed).sample(range(20, 160), 3)]
    found = played(seed, pauses=sorted(pauses), **more)
    assert work_of(found) == work_of(played(100, **more))


def test_every_cohort_but_the_first_plays_the_weights_of_one_step_before():
    cluster = played(3, TROUBLE, [(60, PauseMode.DRAIN)])
    assert lags_of(cluster) == {(0, 0), *((cohort, 1) for cohort in range(1, STEPS))}
