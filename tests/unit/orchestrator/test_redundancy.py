"""Extra groups and members: a step waits for enough of them, and every one it leaves has a fate that is counted."""

import pytest

from flexmarl.contracts import events as e
from flexmarl.contracts.status import RunStatus
from tests.unit.orchestrator.fake_cluster import Faults, make_spec, started


def redundant(surplus, bound=0, **more):
    changes = {
        "mechanisms__redundancy": {"type": "extra_groups", "extra": 3, "surplus": surplus},
        "mechanisms__lag_policy__bound": bound,
        "batch__rollout_groups": 1,
        "batch__min_members": 2,
        "budget__train_steps": 6,
    }
    return make_spec(**(changes | more))


def check_counts(cluster):
    state = cluster.core.state
    assert cluster.status is RunStatus.COMPLETED, state.lifecycle.reason_text
    assert state.step == 6
    episodes = state.totals.train_episodes
    assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
    trained = sum(1 for key in cluster.trained if key[0] < 1 << 30)
    assert trained == state.totals.samples_trained


@pytest.mark.parametrize(
    ("surplus", "bound"), [("cancel", 0), ("join", 0), ("keep", 1), ("continue", 1), ("cancel", 2), ("defer", 0)]
)
def test_every_surplus_is_counted_whatever_breaks(surplus, bound):
    cancelled = handed_on = 0
    for seed in range(5):
        faults = Faults(twice=0.2, child_death=0.01 * (seed % 3), uncommitted=0.02, episode_failure=0.02)
        cluster = started(redundant(surplus, bound), seed=seed, faults=faults, round_trip=seed == 4).run()
        check_counts(cluster)
        assert max(cluster.lags) <= bound
        cancelled += sum(v for (name, *_), v in cluster.metrics.items() if name == "groups/cancelled")
        handed_on += sum(v for (name, *_), v in cluster.metrics.items() if name == "groups/handed_on")
    assert (handed_on > 0) is (surplus == "continue")
    assert cancelled > 0


def test_continued_groups_are_trained_in_a_later_step():
    """The surplus of a step plays on: no episode of it is cancelled before the last steps."""
    for seed in range(3):
        cluster = started(redundant("continue", 1), seed=seed).run()
        check_counts(cluster)
        cohort_of = {s.draw: mb.cohort for mb in cluster.commands("cut_micro_batch") for s in mb.samples}
        opened = {g.draw: order.cohort for order in cluster.commands("play_groups") for g in order.groups}
        later = [draw for draw, cohort in cohort_of.items() if cohort > opened[draw]]
        assert later
        assert all(cohort_of[draw] == opened[draw] + 1 for draw in later)


def test_a_group_that_must_be_in_this_step_is_waited_for():
    spec = redundant("continue", 1)
    cluster = started(spec, seed=1)
    cluster.held_draws = {0}
    cluster.run(until=lambda x: x.core.state.step == 1)
    head = cluster.core.state.cohort
    assert 0 in head.open
    for _ in range(400):
        if not [n for n, x in cluster.open.items() if cluster.possible(x.command)] and not cluster.inbox:
            break
        cluster.happen()
    assert cluster.core.state.step == 1, "a group at its bound was left behind"
    cluster.held_draws = set()
    check_counts(cluster.run())


def test_a_cohort_with_extra_groups_does_not_wait_for_its_slowest():
    cluster = started(redundant("cancel"), seed=2)
    cluster.held_draws = {0, 1, 2}
    cluster.run(until=lambda x: x.core.state.step == 1)
    assert cluster.core.state.totals.train_episodes.cancelled == 9
    assert not any(key[0] in (0, 1, 2) for key in cluster.trained)


def test_extra_members_are_asked_for_and_enough_of_them_suffice():
    spec = make_spec(mechanisms__redundancy={"type": "extra_members", "extra": 2}, batch__episodes_per_task=3)
    cluster = started(spec, seed=1).run()
    assert cluster.status is RunStatus.COMPLETED
    orders = [g for order in cluster.commands("play_groups") if order.origin == "train" for g in order.groups]
    assert {(group.members, group.enough) for group in orders} == {(5, 3)}


def test_extra_groups_and_extra_members_come_together():
    """A step needs so many groups of so many members, and is asked for more of both."""
    both = {"type": "extra_groups", "extra": 2, "extra_members": 1}
    spec = make_spec(mechanisms__redundancy=both, batch__episodes_per_task=3, batch__rollout_groups=1)
    cluster = started(spec, seed=1).run()
    assert cluster.status is RunStatus.COMPLETED
    orders = [(o.cohort, g) for o in cluster.commands("play_groups") if o.origin == "train" for g in o.groups]
    assert {(group.members, group.enough) for _, group in orders} == {(4, 3)}
    assert len({g.draw for cohort, g in orders if cohort == 0}) == spec.batch.tasks_per_step + 2
    for cohort in range(spec.budget.train_steps):
        cut = [mb for mb in cluster.commands("cut_micro_batch") if mb.cohort == cohort]
        assert len({row.draw for mb in cut for row in mb.samples}) == spec.batch.tasks_per_step
    episodes = cluster.core.state.totals.train_episodes
    assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled


@pytest.mark.parametrize("surplus", ["continue", "keep"])
def test_freezes_and_retries_lose_no_surplus(surplus):
    for seed in range(3):
        spec = redundant(surplus, 2, mechanisms__lag_policy__in_flight="discard", budget__train_steps=8)
        cluster = started(spec, seed=seed, faults=Faults(twice=0.1), round_trip=seed == 2)
        for step in (1, 3, 5):
            cluster.run(until=lambda x, step=step: x.core.state.step >= step)
            verb = e.RunVerb(verb=e.Verb.PAUSE, mode=e.PauseMode.FREEZE, actor="ada")
            cluster.tell(verb)
            cluster.run(until=lambda x: x.status is RunStatus.PAUSED)
            cluster.verb(e.Verb.RESUME)
        cluster.run(until=lambda x: x.core.state.step >= 6)
        cluster.verb(e.Verb.KILL)
        cluster.verb(e.Verb.RETRY)
        cluster.run()
        state = cluster.core.state
        assert cluster.status is RunStatus.COMPLETED, state.lifecycle.reason_text
        assert state.step == 8
        episodes = state.totals.train_episodes
        assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
        assert max(cluster.lags) <= 2


def test_extra_environments_add_no_member_and_are_asked_for_with_every_training_group():
    spec = make_spec(mechanisms__redundancy={"type": "extra_environments", "extra": 2}, batch__episodes_per_task=3)
    cluster = started(spec, seed=1).run()
    assert cluster.status is RunStatus.COMPLETED
    orders = [(command.origin, g) for command in cluster.commands("play_groups") for g in command.groups]
    assert {(g.members, g.enough, g.spares) for origin, g in orders if origin == "train"} == {(3, 0, 2)}
    assert {g.spares for origin, g in orders if origin == "eval"} == {0}
    assert cluster.metrics["episodes/replaced", "", "sum", 1] == 0
    assert max(cluster.lags) == 0


def ahead(surplus, bound, protocol, **more):
    return make_spec(
        mechanisms__redundancy={"type": "extra_groups", "extra": 4, "surplus": surplus},
        mechanisms__lag_policy={"bound": bound},
        mechanisms__trainer_protocol=protocol,
        batch={"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 1, "rollout_groups": 1},
        budget__train_steps=6,
        **more,
    )


def fates(cluster):
    """Return of each cohort the draws asked, the draws cut, and how many groups were refused and dropped."""
    asked, cut, gone = {}, {}, {}
    for command in cluster.commands("play_groups"):
        if command.origin == "train":
            asked.setdefault(command.cohort, set()).update(group.draw for group in command.groups)
    for command in cluster.commands("cut_micro_batch"):
        cut.setdefault(command.cohort, set()).update(sample.draw for sample in command.samples)
    for ruling in (ruling for decision in cluster.decisions for ruling in decision.rulings):
        if ruling.kind in ("group_refused", "group_dropped"):
            gone.setdefault(ruling.cohort, []).append(ruling.kind)
    return [(asked[no], cut.get(no, set()), gone.get(no, [])) for no in sorted(asked)]


@pytest.mark.parametrize("surplus", ["cancel", "keep", "defer"])
@pytest.mark.parametrize("protocol", ["batch", "micro_batch"])
@pytest.mark.parametrize("bound", [1, 2])
def test_a_cohort_that_plays_ahead_has_surplus_of_its_own_and_trains_no_more_than_it_needs(bound, protocol, surplus):
    for seed in range(2):
        cluster = started(ahead(surplus, bound, protocol), seed=seed, round_trip=seed == 1).run()
        assert [len(cut) for _, cut, _ in fates(cluster)] == [4] * 6
        if surplus != "defer":
            assert [len(asked) for asked, _, _ in fates(cluster)] == [8] * 6


@pytest.mark.parametrize("protocol", ["batch", "micro_batch"])
@pytest.mark.parametrize("bound", [0, 1, 2])
def test_refused_groups_count_for_a_step_and_lost_ones_are_made_up_for_by_surplus(bound, protocol):
    refused = lost = 0
    for seed in range(3):
        spec = ahead("cancel", bound, protocol, sampling__group_filter="drop_zero_variance")
        cluster = started(spec, seed=seed, faults=Faults(twice=0.1, episode_failure=0.1)).run()
        assert cluster.status is RunStatus.COMPLETED
        for asked, cut, gone in fates(cluster):
            counted = len(cut) + gone.count("group_refused")
            assert counted == 4 or (counted < 4 and len(gone) + len(cut) == len(asked))
            refused += gone.count("group_refused")
            lost += gone.count("group_dropped") if counted == 4 else 0
    assert refused
    assert lost


def test_what_settles_late_is_counted_however_far_ahead_others_have_cancelled():
    """Many cohorts play ahead; the last of them having cancelled its surplus makes nobody forget the first one's."""
    cluster = started(ahead("cancel", 5, "batch"), seed=1)
    cluster.held_draws = {0, 1, 2, 3, 4}
    cluster.run(until=lambda x: len([c for c in x.core.state.cohorts if c.times.settled_at is not None]) == 5)
    state = cluster.core.state
    late = next(draw for draw, no in state.backlog.cancelled.items() if no == 1)
    recorded = state.totals.samples_recorded
    command = next(c for c in cluster.commands("play_groups") if late in [group.draw for group in c.groups])
    cluster.tell(cluster.settle(0, command, command.groups[0]))
    assert state.totals.samples_recorded > recorded
