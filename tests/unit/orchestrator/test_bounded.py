"""Bounded lag: several cohorts in flight, no row above its policy's bound, nothing lost, whatever breaks."""

import pytest

from flexmarl.contracts import commands as c
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started
from tests.unit.orchestrator.test_random_orders import account


def bounded(bound, **more):
    changes = {"mechanisms__lag_policy__bound": bound, "budget__train_steps": 6}
    return make_spec(**(changes | more))


@pytest.mark.parametrize("bound", [1, 2, 3])
@pytest.mark.parametrize("at_admission", ["admit", "wait"])
def test_a_bounded_run_completes_within_its_bound_whatever_breaks(bound, at_admission):
    most = 0
    for seed in range(4):
        faults = Faults(twice=0.2, child_death=0.01 * (seed % 3), uncommitted=0.03, refused=0.01, episode_failure=0.02)
        spec = bounded(bound, mechanisms__lag_policy__at_admission=at_admission, batch__min_members=2)
        cluster = started(spec, seed=seed, faults=faults, round_trip=seed == 3)
        cohorts = 0
        while cluster.status not in (RunStatus.COMPLETED, RunStatus.FAILED):
            cluster.happen()
            cohorts = max(cohorts, len(cluster.core.state.cohorts))
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
        assert cluster.core.state.step == 6
        account(cluster)
        assert max(cluster.lags) <= bound
        assert 2 <= cohorts <= bound + 1
        most = max(most, *cluster.lags)
    assert most == bound, "the bound is never used"


def test_a_vector_lets_one_policy_run_behind_and_no_other():
    spec = bounded(0, policies={"listener": {"lag_policy": {"bound": 2}}}, policies__speaker={})
    lags = {"speaker": set(), "listener": set()}
    for seed in range(8):
        cluster = started(spec, seed=seed).run()
        for policy, own in cluster.lags_of.items():
            lags[policy] |= own
    assert lags["speaker"] == {0}
    assert 1 in lags["listener"]


@pytest.mark.parametrize("in_flight", ["continue", "resume", "restart_turn"])
def test_groups_that_follow_do_not_hold_an_update_back(in_flight):
    spec = bounded(2, mechanisms__lag_policy__in_flight=in_flight)
    for seed in range(4):
        cluster = started(spec, seed=seed, faults=Faults(twice=0.2, child_death=0.01)).run()
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
        account(cluster)
        assert max(cluster.lags) <= 2
    plays = [order for order in cluster.commands("play_groups") if order.origin == "train"]
    assert all(order.follows == {"speaker": in_flight, "listener": in_flight} for order in plays)
    assert all(not order.follows for order in cluster.commands("play_groups") if order.origin == "eval")


@pytest.mark.parametrize("surplus", [None, {"type": "extra_groups", "extra": 2, "surplus": "continue"}], ids=str)
def test_a_policy_takes_what_expires_first_first(surplus):
    """AstraFlow's earliest-deadline order: a row expires with the version it was begun under."""
    more = {} if surplus is None else {"mechanisms__redundancy": surplus}
    for seed in range(4):
        cluster = started(bounded(2, **more), seed=seed).run()
        pinned = {
            group.draw: {name: pin.version for name, pin in order.pins.items()}
            for order in cluster.commands("play_groups")
            for group in order.groups
        }
        for policy in ("speaker", "listener"):
            taken = {}
            for cut in cluster.commands("cut_micro_batch"):
                if cut.ref.policy == policy:
                    taken.setdefault(cut.cohort, []).extend(pinned[row.draw][policy] for row in cut.samples)
            oldest = [min(taken[cohort]) for cohort in sorted(taken)]
            assert list(taken) == sorted(taken)
            assert oldest == sorted(oldest)
            assert len(set(oldest)) > 1


def test_discarded_groups_begin_anew_and_are_counted():
    cancelled = 0
    for seed in range(4):
        cluster = started(bounded(2, mechanisms__lag_policy__in_flight="discard"), seed=seed).run()
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
        episodes = cluster.core.state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
        cancelled += episodes.cancelled
    assert cancelled > 0


def test_a_step_tells_how_old_its_rows_were():
    cluster = started(bounded(1), seed=1).run()
    for name in ("staleness/start", "staleness/completion", "staleness/token"):
        for stat in ("mean", "p99", "max"):
            points = [v for (n, agent, s, _), v in cluster.metrics.items() if (n, agent, s) == (name, "speaker", stat)]
            assert len(points) == 6
    assert max(v for (n, _, s, _), v in cluster.metrics.items() if (n, s) == ("staleness/start", "max")) == 1.0
    assert all(v == 1.0 for (n, *_), v in cluster.metrics.items() if n == "length/trained_ratio")


def test_a_pause_and_a_stop_finish_the_cohorts_in_flight():
    cluster = started(bounded(2, budget__train_steps=40), seed=2)
    cluster.run(until=lambda x: x.core.state.step >= 3)
    cluster.verb("pause")
    cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
    assert not cluster.core.state.cohorts
    cluster.verb("resume")
    cluster.run(until=lambda x: x.core.state.step >= 9)
    cluster.verb("stop")
    cluster.run()
    assert cluster.status is RunStatus.COMPLETED
    account(cluster)


def test_rows_above_the_bound_are_swept_dropped_and_played_again():
    """Settled rows of an older cohort meet weights that moved on without them: only the sweep can tell."""
    spec = bounded(1, mechanisms__lag_policy__at_cut="refresh", batch__micro_batch_groups=6)
    cluster = started(spec, seed=3)
    cluster.run(until=lambda x: len(x.core.state.cohorts) == 2 and bool(x.core.state.cohorts[0].pending))
    head = cluster.core.state.cohort
    old = head.pending[0]
    for ages in old.ages.values():
        ages.rows = {version - 2: rows for version, rows in ages.rows.items()}
    cluster.run()
    dropped = [r for d in cluster.decisions for r in d.rulings if r.cause == "stale"]
    assert {r.policy for r in dropped} == {"speaker", "listener"}
    assert all(r.target == f"draw:{old.draw}" for r in dropped)
    assert cluster.core.state.totals.rows_dropped["stale"] == sum(r.rows for r in dropped)
    assert not any(key[0] == old.draw for key in cluster.trained)
    seeds = [order for play in cluster.commands("play_groups") for order in play.groups if order.draw < 1 << 30]
    again = [order for order in seeds if order.task_seed == seeds[old.draw].task_seed]
    assert isinstance(again[0], c.GroupOrder)
    assert len({order.draw for order in again}) == 2


def test_a_task_that_is_swept_twice_is_played_a_third_time():
    """The draw that repeats a task is another one: what is repeated behind it is the task of the first."""
    spec = bounded(1, mechanisms__lag_policy__at_cut="refresh", batch__micro_batch_groups=6)
    cluster = started(spec, seed=3)
    cluster.run(until=lambda x: len(x.core.state.cohorts) == 2 and bool(x.core.state.cohorts[0].pending))
    first = cluster.core.state.cohort.pending[0].draw
    for _ in range(2):
        cluster.run(until=lambda x: repeats(x, first))
        [old] = repeats(cluster, first)
        for ages in old.ages.values():
            ages.rows = {version - 2: rows for version, rows in ages.rows.items()}
        cluster.run(until=lambda x, old=old: old not in repeats(x, first))
    cluster.run()
    orders = {order.draw: order for play in cluster.commands("play_groups") for order in play.groups}
    again = [order.draw for order in orders.values() if order.task_seed == orders[first].task_seed]
    assert len(again) == 3, again


def repeats(cluster, first):
    """Settled groups of the task of a draw that no step has taken yet."""
    cohorts = cluster.core.state.cohorts
    return [group for one in cohorts for group in one.pending if one.tasks.get(group.draw, group.draw) == first]
