"""Rescue in the core: a group of which nobody solved the task is compared with a stored success of it."""

import random

import pytest

from flexmarl.algorithms.advantages import STD_EPSILON
from flexmarl.contracts.events import Verb
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec
from tests.unit.orchestrator.fake_parts import refusals

TASKS = 6
IN_ORDER = {"type": "greso", "tasks": TASKS, "least_easy": 1.0, "least_hard": 1.0}
RESCUE = {"type": "rescue", "max_age": 6, "max_uses": 4}
RUN = {"sampling__task_sampler": IN_ORDER, "sampling__replay": RESCUE, "algorithm__loss": "ppo_clip"}
"""Each step plays each of six tasks once."""


class Failing(FakeCluster):
    """Solved in the first step by member 1 alone, and by nobody after."""

    solves = True
    after = False

    def episode(self, member, command=None):
        found = super().episode(member, command)
        if command is None or command.origin != "train":
            return found
        won = member == 1 and self.solves and (command.cohort == 0 or self.after)
        update = {"solved": won, "team_score": float(won), "scores": dict.fromkeys(("speaker", "listener"), float(won))}
        return found.model_copy(update=update)


class Fixed(Failing):
    """What a group earns depends on its draw alone."""

    def settle(self, number, command, group, members=None):
        mine, self.rng = self.rng, random.Random(group.draw)
        try:
            return super().settle(number, command, group, members)
        finally:
            self.rng = mine


def cluster_of(kind=Failing, seed=2, faults=None, **changes):
    found = kind(make_spec(**RUN | changes), seed=seed, faults=faults or Faults())
    found.verb(Verb.START)
    return found


def cuts(cluster, replayed, policy="speaker"):
    return [
        cut
        for cut in cluster.commands("cut_micro_batch")
        if bool(cut.replayed) is replayed and cut.ref.policy == policy
    ]


def rescues(cluster):
    return [r for d in cluster.decisions for r in d.rulings if r.kind is RulingKind.GROUP_RESCUED]


def commands(cluster):
    return [(n.no, n.command.model_dump_json()) for d in cluster.decisions for n in d.commands]


def test_a_group_that_failed_has_exactly_one_success_of_an_earlier_step():
    cluster = cluster_of().run()
    assert cluster.status is RunStatus.COMPLETED
    injected = cuts(cluster, replayed=True)
    for cohort in (1, 2, 3):
        rows = [row for cut in injected if cut.cohort == cohort for row in cut.samples]
        assert len({row.draw for row in rows}) == TASKS, "one success for each group of the step"
        assert {row.member for row in rows} == {1}
        assert all(row.draw < TASKS for row in rows), "those of the first step"
        fresh = [row for cut in cuts(cluster, replayed=False) if cut.cohort == cohort for row in cut.samples]
        assert {row.member for row in fresh} == {1, 2}, "the lowest member made room"
    assert not [cut for cut in injected if cut.cohort == 0]
    assert len(rescues(cluster)) == 3 * TASKS
    assert rescues(cluster)[0].cause == "injected"
    assert "is injected in the place of member 0" in rescues(cluster)[0].reason


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_group_is_compared_with_the_success_in_it(weight):
    changes = {"sampling__replay": RESCUE | {"weight": weight}, "algorithm__advantage": {"divide_by_std": True}}
    cluster = cluster_of(**changes).run()
    deviation = (2 / 9) ** 0.5 + STD_EPSILON
    for cut in cuts(cluster, replayed=True):
        for row in cut.samples:
            assert row.advantages == pytest.approx([2 / 3 / deviation] * len(row.advantages))
            assert row.weight == weight
    for cut in cuts(cluster, replayed=False):
        if cut.cohort:
            for row in cut.samples:
                assert row.advantages == pytest.approx([-1 / 3 / deviation] * len(row.advantages))
                assert row.weight == 1.0


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("solves", "after"), [(False, False), (True, True)], ids=["empty pool", "nothing fails"])
def test_without_a_success_or_a_failure_a_run_decides_what_a_plain_one_does(ordered, solves, after):
    found = []
    for replay in ("none", RESCUE):
        cluster = cluster_of(sampling__replay=replay, mechanisms__ordered=ordered)
        cluster.solves, cluster.after = solves, after
        found.append(cluster.run())
    plain, rescue = found
    assert commands(plain) == commands(rescue)
    assert not rescue.replayed
    assert plain.metrics == {key: value for key, value in rescue.metrics.items() if not key[0].startswith("replay/")}


def test_a_success_that_is_too_old_or_used_up_is_not_injected():
    assert {cut.cohort for cut in cuts(cluster_of(sampling__replay=RESCUE | {"max_uses": 1}).run(), True)} == {1}
    young = cluster_of(sampling__replay=RESCUE | {"max_age": 2}).run()
    assert {cut.cohort for cut in cuts(young, True)} == {1, 2}
    assert not young.core.state.choice.successes


def test_an_ordered_run_injects_the_same_in_any_order_of_facts_and_whoever_dies():
    found = []
    for seed in range(4):
        faults = Faults(twice=0.3, child_death=0.01, uncommitted=0.05, refused=0.02, zombie=0.2) if seed else Faults()
        cluster = cluster_of(Fixed, seed=seed, faults=faults, mechanisms__ordered=True).run()
        assert cluster.status is RunStatus.COMPLETED
        found.append({key: cluster.micro_batches[key] for key in cluster.replayed})
    assert found[0]
    assert found[1:] == found[:1] * 3


def test_a_driver_that_takes_over_in_mid_step_injects_the_same():
    cluster = cluster_of(seed=5, faults=Faults(child_death=0.01)).run()
    assert cluster.replayed
    spec = make_spec(**RUN)
    core = Orchestrator(spec)
    for number, (event, now) in enumerate(cluster.log):
        if number % 7 == 0:
            core = Orchestrator.restore(spec, core.snapshot())
        assert core.handle(event, now).commands == cluster.decisions[number].commands
    assert core.snapshot() == cluster.core.snapshot()


def test_a_lagging_run_injects_nothing_that_is_too_old():
    cluster = cluster_of(mechanisms__lag_policy={"bound": 2}, budget__train_steps=8).run()
    assert cluster.status is RunStatus.COMPLETED
    assert cluster.replayed
    for step in range(8):
        for policy in ("speaker", "listener"):
            assert cluster.metrics.get(("replay/age", policy, "max", step + 1), 0.0) <= RESCUE["max_age"]


def test_a_new_attempt_begins_with_an_empty_pool():
    cluster = cluster_of(seed=3)
    cluster.run(until=lambda x: x.core.state.step == 2)
    assert cluster.core.state.choice.successes
    cluster.verb(Verb.KILL)
    cluster.run()
    while cluster.inbox:
        cluster.deliver(0)
    cluster.verb(Verb.RETRY)
    assert not cluster.core.state.choice.successes


@pytest.mark.parametrize(
    ("pointer", "code", "changes"),
    [
        ("/sampling/task_sampler/type", "needs_tasks", {"sampling__task_sampler": "uniform"}),
        ("/algorithm/correction/type", "needs_correction", {"algorithm__loss": "policy_gradient"}),
        ("/algorithm/advantage/type", "needs_group_advantage", {"algorithm__advantage": "reinforce"}),
        ("/sampling/keep_members", "not_with_replay", {"sampling__keep_members": 2}),
        ("/algorithm/shaping/type", "not_with_replay", {"algorithm__shaping": "marti"}),
        ("/mechanisms/redundancy/type", "not_with_replay", {"mechanisms__redundancy": "extra_groups"}),
        (
            "/mechanisms/publication/type",
            "not_with_replay",
            {"mechanisms": {"ordered": True, "publication": "delayed", "lag_policy": {"bound": 1}}},
        ),
    ],
)
def test_what_would_be_wrong_is_refused_with_a_legal_value(pointer, code, changes):
    found = {(one.pointer, one.code): one.hint for one in refusals(**RUN | changes)}
    assert "et " in found[pointer, code]


def test_the_pool_alone_is_legal():
    assert refusals(**RUN) == []


def test_one_member_leaves_nobody_to_compare():
    found = [(one.pointer, one.code) for one in refusals(**RUN | {"batch__episodes_per_task": 1})]
    assert ("/batch/episodes_per_task", "out_of_range") in found
