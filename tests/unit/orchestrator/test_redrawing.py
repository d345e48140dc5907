"""Dynamic sampling: refused groups are drawn again under the same vector, within a limit, and every one is counted."""

import random

import pytest

from flexmarl.contracts.events import PauseMode, RunVerb, Verb
from flexmarl.contracts.rulings import RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeOutcome, Origin, SampleRef
from flexmarl.orchestrator import Orchestrator
from tests.unit.orchestrator.fake_cluster import FakeCluster, Faults, make_spec, started
from tests.unit.orchestrator.fake_parts import refusals
from tests.unit.orchestrator.test_cohorts import failed, quiet, settle

ROLES = ("speaker", "listener")


def drawn_again(**more):
    return {"sampling__group_filter": {"type": "dynamic_sampling"}, **more}


def members(scores):
    """Episodes of these team scores, a turn of each role."""
    return [
        EpisodeOutcome(
            member=member,
            attempt=1,
            status="finished",
            team_score=score,
            solved=score == 1.0,
            samples=tuple(SampleRef(role=role, turn=0, tokens=3, reward=score) for role in ROLES),
        )
        for member, score in enumerate(scores)
    ]


ALIKE, UNLIKE = (1.0, 1.0, 1.0), (1.0, 0.0, 1.0)


class Biased(FakeCluster):
    """Each draw is useful or not by its number and a chance alone, whenever it is played."""

    chance = 0.34

    def settle(self, number, command, group, members_=None):
        event = super().settle(number, command, group, members_)
        if command.origin is not Origin.TRAIN:
            return event
        useful = random.Random(group.draw * 7919 + 5).random() < self.chance
        return event.model_copy(update={"episodes": tuple(members(UNLIKE if useful else ALIKE))})


def played(spec, seed, chance=0.34, **options):
    cluster = Biased(spec, seed=seed, **options)
    cluster.chance = chance
    cluster.verb(Verb.START)
    return cluster.run()


def test_a_refused_group_is_replaced_under_the_same_vector_and_its_step_waits_for_it():
    cluster = quiet(**drawn_again())
    decision = settle(cluster, 2, members(ALIKE))
    orders = [n.command for n in decision.commands if n.command.kind == "play_groups"]
    first = cluster.commands("play_groups")[-2]
    assert [g.draw for order in orders for g in order.groups] == [6]
    assert (orders[0].pins, orders[0].cohort, orders[0].epoch) == (first.pins, 0, first.epoch)
    state = cluster.core.state
    assert (state.cohort.size, state.cohort.groups.refused, state.totals.train_episodes.proposed) == (7, 1, 21)
    ruling = next(r for r in decision.rulings if r.kind is RulingKind.GROUP_REFUSED)
    assert (
        ruling.reason
        == "group 2 refused: the filter dynamic_sampling keeps no easy group; group 6 is drawn in its place"
    )
    for draw in (0, 1, 3, 4, 5):
        settle(cluster, draw, members(UNLIKE))
    assert state.cohort.times.settled_at is None
    decision = settle(cluster, 6, members(UNLIKE))
    assert state.cohort.times.settled_at is not None
    assert state.cohort.groups.kept == 6
    assert any("7 were drawn for the 6 of a step" in r.reason for r in decision.rulings)


def test_what_failed_is_not_drawn_again():
    cluster = quiet(**drawn_again())
    settle(cluster, 0, [*members(UNLIKE)[:2], failed(2)])
    assert (cluster.core.state.cohort.size, cluster.core.state.cohort.groups.dropped) == (6, 1)


def test_a_step_goes_on_with_what_it_has_when_the_limit_is_reached_and_says_so():
    cluster = quiet(**drawn_again(sampling__group_filter__draw_limit=2))
    kept = {3, 8}
    for draw in range(12):
        decision = settle(cluster, draw, members(UNLIKE if draw in kept else ALIKE))
    cohort = cluster.core.state.cohort
    assert (cohort.size, cohort.groups.kept, cohort.groups.refused, cohort.times.settled_at is None) == (
        12,
        2,
        10,
        False,
    )
    assert "the limit of 12 groups is reached" in next(
        r.reason for r in decision.rulings if r.kind is RulingKind.GROUP_REFUSED
    )
    assert "continues with 2 of 6 groups" in cluster.notes[-1].text
    cluster.run(until=lambda x: x.core.state.step == 1)
    assert {key[0] for key in cluster.trained} == kept
    assert cluster.metrics["groups/drawn", "", "sum", 1] == 12
    assert cluster.metrics["groups/drawn_per_kept", "", "mean", 1] == 6


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mechanisms__ordered": True},
        {"mechanisms__trainer_protocol": "batch"},
        {
            "mechanisms__trainer_protocol": "mini_batch",
            "batch__mini_batches": 3,
            "mechanisms__lag_policy__bound": 2,
        },
        {"mechanisms__lag_policy__bound": 2},
        {"mechanisms__lag_policy": {"bound": 2, "in_flight": "discard"}},
        {"mechanisms__publication": "wavefront"},
        {"mechanisms__redundancy": {"type": "extra_members", "extra": 1}},
    ],
    ids=str,
)
def test_every_step_has_its_number_of_kept_groups_whatever_breaks(changes):
    for seed in range(4):
        spec = make_spec(**drawn_again(**changes, sampling__group_filter__draw_limit=1000))
        faults = Faults(twice=0.2, child_death=0.01 * (seed % 2), uncommitted=0.05, refused=0.01)
        cluster = played(spec, seed, faults=faults, round_trip=seed == 3)
        state, episodes = cluster.core.state, cluster.core.state.totals.train_episodes
        assert cluster.status is RunStatus.COMPLETED, state.lifecycle.reason_text
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
        assert state.totals.samples_trained == len(cluster.trained)
        per_step = {}
        for cut in cluster.commands("cut_micro_batch"):
            per_step.setdefault(cut.cohort, set()).update(s.draw for s in cut.samples)
        assert {step: len(draws) for step, draws in per_step.items()} == dict.fromkeys(range(4), 6)


def test_draws_per_kept_group_are_those_of_the_chance():
    """Of groups that teach something with a chance of .3366 (eight members, each right with .05), 2.97 are drawn."""
    spec = make_spec(
        **drawn_again(sampling__group_filter__draw_limit=1000, batch__tasks_per_step=60, budget__train_steps=6)
    )
    cluster = played(spec, 1, chance=0.3366)
    drawn = sum(v for (name, *_), v in cluster.metrics.items() if name == "groups/drawn")
    assert drawn / 360 == pytest.approx(1 / 0.3366, rel=0.12)


def test_an_ordered_run_draws_and_cuts_the_same_in_any_order_of_arrival():
    def cuts(seed):
        spec = make_spec(**drawn_again(mechanisms__ordered=True, sampling__group_filter__draw_limit=4))
        cluster = played(spec, seed, faults=Faults(twice=0.2, child_death=0.005 * seed))
        return [(x.ref, x.cohort, x.samples) for x in cluster.commands("cut_micro_batch")]

    first = cuts(0)
    assert len({cohort for _, cohort, _ in first}) == 4
    assert all(cuts(seed) == first for seed in range(1, 5))


def test_a_frozen_run_that_learns_of_a_refused_group_draws_again_when_it_goes_on():
    for seed in range(4):
        cluster = Biased(make_spec(**drawn_again()), seed=seed)
        cluster.verb(Verb.START)
        cluster.run(until=lambda x: x.core.state.cohort is not None and len(x.inbox) > 1 and x.groups)
        cluster.tell(RunVerb(verb=Verb.PAUSE, mode=PauseMode.FREEZE, actor="ada"))
        while cluster.inbox:
            cluster.deliver(0)
        cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
        again = Orchestrator.restore(cluster.spec, cluster.core.snapshot())
        assert again.snapshot() == cluster.core.snapshot()
        cluster.verb(Verb.RESUME)
        cluster.run()
        episodes = cluster.core.state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
        assert cluster.core.state.step == 4


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"sampling__group_filter__draw_limit": 3}, "/sampling/group_filter/draw_limit", "not_read"),
        (
            drawn_again(mechanisms__redundancy={"type": "extra_groups", "extra": 2}),
            "/mechanisms/redundancy/type",
            "not_with_dynamic_sampling",
        ),
        (
            drawn_again(batch__settle="episode", algorithm__advantage={"type": "reinforce"}),
            "/batch/settle",
            "needs_group",
        ),
    ],
)
def test_what_it_cannot_be_beside_is_refused_with_a_legal_value(changes, pointer, code):
    problem = next(p for p in refusals(**changes) if p.code == code)
    assert problem.pointer == pointer
    assert problem.hint


def test_without_it_nothing_is_drawn_again():
    cluster = started(make_spec(sampling__group_filter="drop_zero_variance"), seed=1).run()
    assert {
        cohort.draw for order in cluster.commands("play_groups") for cohort in order.groups if cohort.draw < 1 << 30
    } == set(range(24))
