"""The archive: what leaves, what is drawn, in which order, and how fast."""

import random
import time

import pytest

from flexmarl.algorithms.replay import ArchivedGroup, add, draw, expire, replayed_groups


def group(oldest, draw_no, rows=1, advantage=0.5, cohort=0):
    own = [(member, 1, "role", 0, (advantage,), 1.0, 4) for member in range(rows)]
    return ArchivedGroup(oldest, draw_no, cohort, own)


def archive_of(*places):
    archive = []
    for oldest, draw_no in places:
        add(archive, group(oldest, draw_no))
    return archive


def draws(groups):
    return [one.draw for one in groups]


def test_the_archive_is_the_same_in_whatever_order_groups_settle():
    places = [(version, 10 * version + number) for version in range(4) for number in range(3)]
    shuffled = places[:]
    random.Random(1).shuffle(shuffled)
    assert archive_of(*shuffled) == archive_of(*places)


def test_a_group_without_any_advantage_is_not_kept():
    archive = []
    add(archive, group(1, 1, advantage=0.0))
    assert not archive
    add(archive, group(1, 1, advantage=-0.1))
    assert draws(archive) == [1]


def test_what_is_older_than_the_cap_leaves_and_nothing_else():
    archive = archive_of((1, 1), (2, 2), (2, 3), (3, 4))
    assert expire(archive, version=4, max_age=2) == 1
    assert draws(archive) == [2, 3, 4]
    assert expire(archive, version=4, max_age=2) == 0


def test_the_first_to_grow_too_old_is_drawn_first_or_the_newest():
    places = [(1, 7), (1, 3), (2, 5), (3, 9)]
    assert draws(draw(archive_of(*places), 2, 1, 1, "earliest_deadline")) == [3, 7]
    assert draws(draw(archive_of(*places), 2, 1, 1, "newest")) == [5, 9]


@pytest.mark.parametrize("order", ["earliest_deadline", "newest"])
def test_a_group_is_drawn_once_for_a_cohort_and_not_more_often_than_it_may_be(order):
    archive = archive_of((1, 1), (1, 2))
    archive.append(group(2, 3, cohort=5))  # the cohort's own
    assert draws(draw(archive, 9, 5, 2, order)) == [1, 2]
    assert draw(archive, 9, 5, 2, order) == [], "these were drawn for it"
    assert draws(draw(archive, 9, 6, 2, order)) == [1, 2, 3]
    assert draws(archive) == [3], "the others are used up"


def test_an_empty_archive_gives_nothing():
    assert draw([], 5, 1, 1, "newest") == []
    assert expire([], 9, 1) == 0


@pytest.mark.parametrize(
    ("fresh", "share", "groups"), [(32, 0.0, 0), (0, 0.5, 0), (30, 0.25, 10), (32, 0.5, 32), (1, 0.9, 9)]
)
def test_the_replayed_are_the_share_of_all_groups_at_most(fresh, share, groups):
    assert replayed_groups(fresh, share) == groups
    assert not groups or groups / (groups + fresh) <= share + 1e-12


@pytest.mark.parametrize("order", ["earliest_deadline", "newest"])
def test_a_thousand_rows_of_a_million_are_drawn_in_time(order):
    rows = [(member, 1, "role", 0, (0.5,), 1.0, 4) for member in range(8)]
    archive = [ArchivedGroup(number // 4000, number, 0, rows) for number in range(125_000)]
    took = []
    for cohort in range(1, 12):
        began = time.perf_counter()
        expire(archive, 31 + cohort, 64)
        found = draw(archive, 125, cohort, 1, order)
        took.append(time.perf_counter() - began)
        assert sum(len(one.rows) for one in found) == 1000
    assert sorted(took)[len(took) // 2] < 0.02
