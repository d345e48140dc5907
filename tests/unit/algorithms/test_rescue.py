"""The pool of successes: what is stored of a group, what replaces it, and when it is taken."""

import pytest

from flexmarl.algorithms.replay import ArchivedGroup
from flexmarl.algorithms.rescue import ages_of, episode_of, expire, in_order, store, success_of, usable
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef


def episode(member: int, score: float, *, solved: bool | None = None, attempt: int = 1) -> EpisodeOutcome:
    return EpisodeOutcome(
        member=member,
        attempt=attempt,
        status=EpisodeStatus.FINISHED,
        scores={"speaker": score},
        team_score=score,
        solved=score == 1.0 if solved is None else solved,
        samples=(
            SampleRef(role="speaker", turn=0, tokens=3, reward=score),
            SampleRef(role="speaker", turn=1, tokens=2, follows=1),
        ),
    )


def test_the_best_member_that_solved_is_stored_whatever_the_order():
    group = [episode(0, 0.0), episode(1, 0.7, solved=True), episode(2, 1.0), episode(3, 1.0, attempt=2)]
    assert success_of(group, 9, 4) == success_of(group[::-1], 9, 4)
    found = success_of(group, 9, 4)
    assert (found.draw, found.member, found.attempt, found.last, found.team_score) == (9, 2, 1, 4, 1.0)
    assert success_of(group[:1], 9, 4) is None


def test_a_stored_success_stands_in_a_group_with_all_that_it_is_compared_by():
    original = episode(5, 1.0, attempt=3)
    found = episode_of(success_of([original], 9, 4), 0)
    assert found == original.model_copy(update={"member": 0})


def test_a_newer_success_replaces_an_older_one_and_not_the_other_way_round():
    pool = {}
    old, new = success_of([episode(1, 1.0)], 3, 0), success_of([episode(2, 1.0)], 8, 1)
    store(pool, 7, old, "a", 0)
    store(pool, 7, old, "b", 1)
    assert pool[7].oldest == {"a": 0, "b": 1}
    pool[7].uses = 2
    store(pool, 7, new, "a", 1)
    assert (pool[7].draw, pool[7].oldest, pool[7].uses) == (8, {"a": 1}, 0)
    store(pool, 7, old, "b", 1)
    assert (pool[7].draw, pool[7].oldest) == (8, {"a": 1})


@pytest.mark.parametrize(
    ("cohort", "version", "age", "uses", "found"),
    [(2, 4, 3, 1, True), (1, 4, 3, 1, False), (2, 5, 3, 1, False), (2, 4, 3, 0, False)],
    ids=["usable", "of the same step", "too old", "used up"],
)
def test_a_success_is_taken_by_later_steps_while_it_is_young_and_not_used_up(cohort, version, age, uses, found):
    pool = {}
    store(pool, 7, success_of([episode(1, 1.0)], 3, 1), "a", 1)
    assert usable(pool[7], cohort, {"a": version}, age, uses) is found
    assert not usable(None, cohort, {"a": version}, age, uses)


def test_what_is_too_old_or_used_up_leaves():
    pool = {}
    for task, oldest in enumerate([0, 3, 3]):
        store(pool, task, success_of([episode(1, 1.0)], task, 0), "a", oldest)
        pool[task].rows["a"] = 2
    pool[2].uses = 1
    assert ages_of(pool, "a", 5) == {2: (2, 4), 5: (1, 2)}
    assert ages_of(pool, "b", 5) == {}
    expire(pool, {"a": 5}, 2, 1)
    assert list(pool) == [1]


def test_injected_rows_are_trained_in_one_order():
    groups = [ArchivedGroup(0, draw, 1, []) for draw in (4, 1, 3)]
    assert [one.draw for one in in_order(groups)] == [1, 3, 4]
