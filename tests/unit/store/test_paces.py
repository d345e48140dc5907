"""What the rows of a run tell of its episodes, beside the same told by hand."""

from statistics import fmean, stdev, variance

import psycopg
import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.store import paces, runs
from flexmarl.store.groups import EpisodeRow, _insert_episodes

pytestmark = pytest.mark.services


def play(conn: psycopg.Connection, run: int, groups: list[list[int]]) -> tuple[float, float, float]:
    """Record groups whose members have so many turns; return what is told of them."""
    runs.create_run(conn, run, {}, RunStatus.RUNNING)
    made = [
        EpisodeRow(
            draw, member, 1, Origin.TRAIN, EpisodeStatus.FINISHED, "", {}, 0.0, False, turns, 9, {}, {}, [], 1e9, 2e9, 0
        )
        for draw, members in enumerate(groups) for member, turns in enumerate(members)
    ]  # fmt: skip
    _insert_episodes(conn, run, made)
    return paces.read(conn, run).turns


def test_lengths_are_told_with_how_alike_those_of_a_group_are(store_conn: psycopg.Connection) -> None:
    groups = [[2, 3, 4], [8, 8, 6], [5, 4, 4], [2, 2, 1]]
    every = [turns for group in groups for turns in group]
    inside = fmean(variance(group) for group in groups)
    told = (fmean(every), stdev(every), 1.0 - inside / variance(every))
    assert play(store_conn, 1, groups) == pytest.approx(told)
    assert 0.5 < told[2] < 1.0


@pytest.mark.parametrize(
    ("groups", "alike"), [([[2, 8], [8, 2]], 0.0), ([[3], [5]], 0.0), ([[4, 4], [4, 4]], 0.0), ([[2, 2], [6, 6]], 1.0)]
)
def test_nothing_is_alike_where_groups_do_not_differ_or_have_one_member(
    store_conn: psycopg.Connection, groups: list[list[int]], alike: float
) -> None:
    assert play(store_conn, 1, groups)[2] == alike
