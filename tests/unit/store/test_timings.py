"""What the rows of a run tell of its episodes, beside the same told by hand."""

from statistics import fmean, stdev, variance

import psycopg
import pytest

from flexmarl.contracts.status import RunStatus
from flexmarl.contracts.timings import Worked
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.store.control import runs
from flexmarl.store.control.nodes import DeviceFacts, NodeFacts, register_node
from flexmarl.store.data.groups import EpisodeRow, _insert_episodes
from flexmarl.store.reads import timings
from flexmarl.store.telemetry import intervals
from flexmarl.store.telemetry.intervals import BusyInterval

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
    return timings.read(conn, run).turns


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


def work(conn: psycopg.Connection, run: int, node: str, *devices: DeviceFacts) -> None:
    """Let each device of a host of two cores decode, train and step once."""
    register_node(conn, NodeFacts(node, "127.0.0.1:1", node, "1", {"cpus": 2}), devices)
    for device in devices:
        row = conn.execute(
            "INSERT INTO store.lease (device_id, run_id, use) VALUES (%s, %s, 'engine') RETURNING id", [device.id, run]
        ).fetchone()
        assert row is not None
        rows = [
            BusyInterval(0, "rollout", "a", 10.0, 11.0, 8, steps=4, prompts=3, cpu=0.5),
            BusyInterval(1, "train", "a", 11.0, 12.0, cpu=0.8),
            BusyInterval(2, "step", "a", 12.0, 13.0),
            BusyInterval(3, "bind", "a", 13.0, 14.0),
        ]
        intervals.put(conn, run, row[0], device.id, incarnation="i", rows=rows)


def test_work_is_told_with_what_it_took_of_the_processors_of_one_host(store_conn: psycopg.Connection) -> None:
    runs.create_run(store_conn, 1, {}, RunStatus.RUNNING)
    work(store_conn, 1, "box", DeviceFacts("box.cpu0", "cpu", 0))
    told = timings.read(store_conn, 1)
    assert told.worked == [Worked(10.0, 11.0, 0.5), Worked(11.0, 12.0, 0.8)]
    assert [(row.seconds, row.cpu) for row in told.decoded] == [(1.0, 0.5)]
    assert told.cores == 2


def test_what_other_kinds_of_devices_and_several_hosts_do_tells_nothing_of_cores(
    store_conn: psycopg.Connection,
) -> None:
    runs.create_run(store_conn, 1, {}, RunStatus.RUNNING)
    work(store_conn, 1, "box", DeviceFacts("box.cpu0", "cpu", 0), DeviceFacts("box.gpu0", "cuda", 0))
    told = timings.read(store_conn, 1)
    assert (len(told.worked), sorted(row.cpu for row in told.decoded), told.cores) == (2, [0.0, 0.5], 2)
    work(store_conn, 1, "other", DeviceFacts("other.cpu0", "cpu", 0))
    assert timings.read(store_conn, 1).cores == 0
