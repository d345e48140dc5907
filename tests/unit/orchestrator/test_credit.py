"""Admission by credit: the groups of a step and the surplus are on their way, never more, and nothing is lost."""

import pytest

from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started
from tests.unit.orchestrator.test_redundancy import check_counts


def by_credit(extra=3, share=0.0, **lag):
    rule = {"bound": 9, "at_admission": "trained", "in_flight": "continue"} | lag
    return make_spec(
        mechanisms__redundancy={"type": "extra_groups", "extra": extra, "share": share, "surplus": "continue"},
        mechanisms__lag_policy=rule,
        mechanisms__trainer_protocol="per_group",
        batch__rollout_groups=1,
        batch__min_members=2,
        budget__train_steps=6,
    )


def on_their_way(cluster):
    """Groups that were proposed and that no step has taken."""
    return sum(
        len(own.open) + own.groups.kept + own.groups.refused + own.groups.dropped - own.groups.late
        for own in cluster.core.state.cohorts
        if own.times.stepped_at is None
    )


LAGS = [{}, {"in_flight": "finish"}, {"bound": 1, "at_cut": "drop"}, {"bound": 1, "at_cut": "train"}, {"bound": 2}]


@pytest.mark.parametrize("lag", LAGS)
def test_every_group_has_one_fate_whatever_breaks(lag):
    for seed in range(4):
        faults = Faults(twice=0.2, child_death=0.01 * (seed % 3), uncommitted=0.02, episode_failure=0.02)
        cluster = started(by_credit(**lag), seed=seed, faults=faults, round_trip=seed == 3).run()
        check_counts(cluster)
        assert max(cluster.lags) <= lag.get("bound", 9) or lag.get("at_cut") == "train"


@pytest.mark.parametrize(("extra", "share"), [(1, 0.0), (3, 0.0), (0, 0.5), (1, 2.0)])
def test_no_more_are_on_their_way_than_the_credit(extra, share):
    spec = by_credit(extra, share)
    credit = spec.batch.tasks_per_step + extra + round(share * spec.batch.tasks_per_step)
    cluster, most = started(spec, seed=5), 0
    while cluster.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
        cluster.happen()
        most = max(most, on_their_way(cluster))
    assert most == credit
    assert max(cluster.lags) >= 1, "surplus that plays on is trained a step later"


def test_a_step_of_several_updates_waits_for_its_own_groups():
    """What was handed on may be enough for all but the last update: none is taken before the others are proposed."""
    spec = make_spec(
        mechanisms__redundancy={"type": "extra_groups", "share": 2.0, "surplus": "continue"},
        mechanisms__lag_policy={"bound": 64, "at_admission": "trained", "in_flight": "resume"},
        mechanisms__trainer_protocol="mini_batch",
        batch={"tasks_per_step": 4, "mini_batches": 4, "micro_batch_groups": 1, "rollout_groups": 1},
        budget__train_steps=6,
    )
    for seed in range(6):
        cluster = started(spec, seed=seed).run()
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text


def test_without_surplus_every_step_starts_from_the_newest_weights():
    spec = make_spec(mechanisms__lag_policy={"bound": 1, "at_admission": "trained"}, budget__train_steps=4)
    cluster = started(spec, seed=2).run()
    assert cluster.status is RunStatus.COMPLETED
    assert set(cluster.lags) == {0}


def test_a_group_that_grew_older_than_the_bound_is_neither_dropped_nor_waited_for_where_it_is_to_be_trained():
    """Two groups are held for three steps, which do not wait for them; then they are trained."""
    cluster = started(by_credit(extra=2, bound=1, at_cut="train"), seed=1)
    cluster.held_draws = {0, 1}
    cluster.run(until=lambda x: x.core.state.step == 3)
    cluster.held_draws = set()
    check_counts(cluster.run())
    assert not cluster.core.state.totals.rows_dropped.get("stale", 0)
    assert max(cluster.lags) >= 3
    trained = {sample.draw for one in cluster.commands("cut_micro_batch") for sample in one.samples}
    assert {0, 1} <= trained


def test_a_group_that_grew_too_old_is_replaced_within_its_step():
    """Two groups are held until they are too old: every step still trains all the groups it needs."""
    spec = by_credit(extra=2, bound=1, at_cut="drop")
    cluster = started(spec, seed=1)
    cluster.held_draws = {0, 1}
    cluster.run(until=lambda x: x.core.state.step == 3)
    cluster.held_draws = set()
    check_counts(cluster.run())
    assert cluster.core.state.totals.rows_dropped.get("stale", 0) > 0
    cuts = {no: set() for no in range(6)}
    for micro_batch in cluster.commands("cut_micro_batch"):
        cuts[micro_batch.cohort] |= {sample.draw for sample in micro_batch.samples}
    assert all(len(cuts[no]) == spec.batch.tasks_per_step for no in range(5))


@pytest.mark.parametrize("protocol", ["micro_batch", "batch", "mini_batch"])
def test_a_step_trains_as_many_groups_whatever_settles_meanwhile(protocol):
    """Four steps' groups settle while one is trained: those that a step does not need wait for the next."""
    spec = make_spec(
        mechanisms__redundancy={"type": "extra_groups", "share": 4.0, "surplus": "continue"},
        mechanisms__lag_policy={"bound": 64, "at_admission": "trained", "in_flight": "resume"},
        mechanisms__trainer_protocol=protocol,
        batch={"tasks_per_step": 4, "mini_batches": 4, "micro_batch_groups": 1, "rollout_groups": 1},
        budget__train_steps=6,
    )
    cluster = started(spec, seed=1, round_trip=True).run()
    assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
    cuts = {}
    for micro_batch in cluster.commands("cut_micro_batch"):
        cuts.setdefault(micro_batch.cohort, set()).update(sample.draw for sample in micro_batch.samples)
    assert [len(cuts[no]) for no in sorted(cuts)] == [4] * 6
    assert sum(map(len, cuts.values())) == len(set().union(*cuts.values())), "a group was trained twice"
