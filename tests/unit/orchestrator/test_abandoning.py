"""Members that were given up between two turns: each counts once, their credit comes back, their task plays again."""

import pytest

from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.orchestrator.state.tokens import Undelivered
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started
from tests.unit.orchestrator.test_credit import by_credit
from tests.unit.orchestrator.test_redundancy import check_counts

GIVING_UP = {"bound": 1, "at_cut": "drop", "at_turn": "abandon"}


def held_for_some_steps(spec, **options):
    """Two groups play while four steps are taken; then they go on, and most of their members are given up."""
    cluster = started(spec, **options)
    cluster.held_draws = {0, 1}
    cluster.run(until=lambda x: x.core.state.step == 4)
    cluster.held_draws = set()
    return cluster.run()


def too_old(cluster):
    return [
        ruling
        for decision in cluster.decisions
        for ruling in decision.rulings
        if ruling.kind is RulingKind.GROUP_DROPPED and ruling.cause == "stale"
    ]


def test_a_group_that_was_given_up_is_replaced_within_its_step():
    """With every member given up, nothing of it is trained, and every step still trains all the groups it needs."""
    spec = by_credit(extra=2, **GIVING_UP)
    cluster = held_for_some_steps(spec, seed=1)
    check_counts(cluster)
    targets = {ruling.target for ruling in too_old(cluster)}
    assert targets
    assert targets <= {"draw:0", "draw:1"}, "no other group is old"
    assert "the bound is 1" in too_old(cluster)[0].reason
    cuts = {no: set() for no in range(6)}
    for micro_batch in cluster.commands("cut_micro_batch"):
        cuts[micro_batch.cohort] |= {sample.draw for sample in micro_batch.samples}
    assert all(len(cuts[no]) == spec.batch.tasks_per_step for no in range(5))
    assert not {0, 1} & set().union(*cuts.values())
    given_up = sum(value for (name, *_), value in cluster.metrics.items() if name == "episodes/abandoned")
    assert given_up >= 2
    assert cluster.core.state.totals.tokens.lost[Undelivered.STALE] >= 2 * given_up, "two tokens of each at least"
    assert not cluster.core.state.totals.tokens.lost.get(Undelivered.INCOMPLETE)


def test_a_step_does_not_fail_the_run_where_it_lost_its_groups_to_age():
    """Of a run whose episodes fail, two empty steps in a row are the end; being too old is no failure."""
    cluster = held_for_some_steps(by_credit(extra=2, **GIVING_UP), seed=1)
    assert cluster.core.state.totals.train_episodes.failed == 0
    assert cluster.core.state.totals.train_episodes.cancelled > 0
    assert not any("none of" in note.text for note in cluster.notes if hasattr(note, "text"))


def test_the_task_of_a_group_that_was_given_up_plays_again_where_the_cut_says_so():
    cluster = held_for_some_steps(by_credit(extra=2, **(GIVING_UP | {"at_cut": "refresh"})), seed=1)
    check_counts(cluster)
    orders = [g for play in cluster.commands("play_groups") for g in play.groups if g.draw < 1 << 30]
    for draw in (0, 1):
        seed = next(order.task_seed for order in orders if order.draw == draw)
        assert len({order.draw for order in orders if order.task_seed == seed}) == 2
        assert not any(key[0] == draw for key in cluster.trained)


def test_a_step_trains_no_more_groups_than_it_needs_where_some_were_given_up(monkeypatch):
    """More groups settle than a step needs: one that was given up stands for none of those that are passed on."""
    monkeypatch.setattr(
        "tests.unit.orchestrator.fake_parts.outgrown", lambda cluster, command: "old" * (cluster.rng.random() < 0.3)
    )
    spec = make_spec(
        mechanisms__redundancy={"type": "extra_groups", "share": 3.0, "surplus": "continue"},
        mechanisms__lag_policy=GIVING_UP | {"bound": 9, "at_admission": "trained", "in_flight": "resume"},
        mechanisms__trainer_protocol="batch",
        batch__rollout_groups=1,
        budget__train_steps=6,
    )
    for seed in range(4):
        cluster = started(spec, seed=seed).run()
        check_counts(cluster)
        assert too_old(cluster)
        cuts = {}
        for micro_batch in cluster.commands("cut_micro_batch"):
            cuts.setdefault(micro_batch.cohort, set()).update(sample.draw for sample in micro_batch.samples)
        assert {len(groups) for groups in cuts.values()} == {spec.batch.tasks_per_step}


@pytest.mark.parametrize("lag", [GIVING_UP, GIVING_UP | {"at_cut": "refresh"}, GIVING_UP | {"bound": 2}])
def test_every_group_has_one_fate_whatever_breaks(lag):
    given_up = 0
    for seed in range(4):
        faults = Faults(twice=0.2, child_death=0.01 * (seed % 3), uncommitted=0.02, episode_failure=0.02)
        cluster = held_for_some_steps(by_credit(**lag), seed=seed, faults=faults, round_trip=seed == 3)
        check_counts(cluster)
        assert max(cluster.lags) <= lag["bound"]
        given_up += len(too_old(cluster))
    assert given_up


def test_episodes_that_settle_one_by_one_are_given_up_one_by_one(monkeypatch):
    """A member that was given up ends like any other; its group waits for the others, and is none that failed."""
    spec = make_spec(
        mechanisms__lag_policy=GIVING_UP,
        batch__settle="episode",
        algorithm__advantage={"type": "reinforce"},
        budget__train_steps=6,
    )
    given_up = {}

    def sometimes(cluster, command):
        given_up.setdefault(id(cluster), 0)
        grew_old = cluster.rng.random() < 0.4
        given_up[id(cluster)] += grew_old
        return "speaker v0 said its first turn, v2 is served: the bound is 1" if grew_old else ""

    monkeypatch.setattr("tests.unit.orchestrator.fake_parts.outgrown", sometimes)
    for seed in range(4):
        cluster = started(spec, seed=seed, round_trip=seed == 3).run()
        assert cluster.status is RunStatus.COMPLETED, cluster.core.state.lifecycle.reason_text
        episodes = cluster.core.state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.cancelled
        assert cluster.core.state.totals.samples_trained == len(cluster.trained)
        assert 0 < episodes.cancelled <= given_up[id(cluster)]
        dropped = sum(value for (name, *_), value in cluster.metrics.items() if name == "groups/dropped")
        assert dropped == 0, "a group whose members were too old did not fail"
