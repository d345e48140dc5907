"""An engine of several devices: one lease that its child serves, further ones that follow it, and all of them held."""

import psycopg
import pytest

from flexmarl.contracts.commands import HostLease, RequestDevices
from flexmarl.contracts.events import DeviceUse
from flexmarl.store.control import cordons, leased_memory, leases, node_beats, reconciliation
from flexmarl.store.control.cordons import DrainMode
from flexmarl.store.reads import engine_rows
from flexmarl.store.telemetry import intervals
from tests.support.store_story import Story

PLACES = [(f"box.cpu{i}", DeviceUse.ENGINE) for i in (2, 0)] + [("box.cpu1", DeviceUse.TRAINER)]
"""Ranks follow the order of the grant, not of the names."""


@pytest.fixture
def story(store_conn: psycopg.Connection) -> Story:
    own = Story(store_conn).start()
    own.register(4)
    return own


def granted(story: Story, memory: dict[str, int] | None = None):
    no = story.issue(RequestDevices(pool="default", engines=1, trainers=1, engine_devices=2))
    return leases.grant(story.conn, story.lease, no, PLACES, memory)


def states(story: Story) -> dict[str, str]:
    return dict(story.conn.execute("SELECT device_id, state FROM store.lease WHERE use = 'engine'").fetchall())


def seats(story: Story) -> int:
    return story.conn.execute("SELECT coalesce(sum(devices), 0) FROM store.seat").fetchone()[0]


def test_a_grant_names_one_lease_of_an_engine_and_holds_all_of_its_devices(story):
    engine, trainer = granted(story)
    assert (engine.device_id, engine.further, trainer.further) == ("box.cpu2", ("box.cpu0",), ())
    assert [device.id for device in leases.supply(story.conn).free] == ["box.cpu3"]
    assert seats(story) == 3
    assert reconciliation.read(story.conn, 1).leases == {engine.lease_id: "held", trainer.lease_id: "held"}
    with pytest.raises(psycopg.errors.UniqueViolation):
        story.conn.execute("INSERT INTO store.lease (device_id, run_id, use) VALUES ('box.cpu0', 2, 'engine')")


def test_devices_of_which_one_is_not_free_are_not_granted_at_all(story):
    story.conn.execute("INSERT INTO store.lease (device_id, run_id, use) VALUES ('box.cpu0', 2, 'trainer')")
    assert granted(story) is None
    assert story.conn.execute("SELECT count(*) FROM store.lease WHERE run_id = 1").fetchone() == (0,)


def test_an_open_request_is_a_seat_for_each_device_while_the_run_holds_a_part(story):
    granted(story)
    story.issue(RequestDevices(pool="default", engines=1, trainers=0, engine_devices=2))
    assert seats(story) == 5


def test_memory_is_leased_with_each_device(story):
    story.conn.execute("UPDATE store.device SET memory_bytes = 100")
    assert granted(story, {"box.cpu2": 90, "box.cpu0": 90, "box.cpu1": 50}) is not None
    assert leased_memory.left(story.conn) == {"box": 170}
    story.conn.execute("UPDATE store.lease SET state = 'ended' WHERE use = 'engine' AND leader IS NULL")
    assert leased_memory.left(story.conn) == {"box": 350}


def test_further_devices_are_released_and_end_with_their_engine(story):
    engine, trainer = granted(story)
    taken = story.take(story.issue(HostLease(lease_id=engine.lease_id, device_id="box.cpu2", use=DeviceUse.ENGINE)))
    hosting = leases.take_hosting(story.conn, taken, 30)
    assert hosting.further == ("box.cpu0",)
    assert set(leases.release_run(story.conn, 1)) == {engine.lease_id, trainer.lease_id}
    assert states(story) == {"box.cpu2": "releasing", "box.cpu0": "releasing"}
    leases.end(story.conn, taken, hosting, "released")
    assert states(story) == {"box.cpu2": "ended", "box.cpu0": "ended"}
    reasons = story.conn.execute("SELECT DISTINCT reason FROM store.lease WHERE use = 'engine'").fetchall()
    assert reasons == [("released",)]
    story.decide()
    ended = [event.lease_id for event in story.handled if event.kind == "lease_ended"]
    assert sorted(ended) == sorted([engine.lease_id, trainer.lease_id]), "the trainer's was never hosted"


def test_nobody_ends_a_further_device_by_itself(story):
    engine, _ = granted(story)
    story.conn.execute("UPDATE store.lease SET expires_at = now() - interval '1 hour'")
    leases.request_release(story.conn, 1, engine.lease_id)  # never hosted: it ends at once
    assert states(story) == {"box.cpu2": "ended", "box.cpu0": "ended"}
    again = granted_again(story)
    story.conn.execute("UPDATE store.lease SET state = 'releasing', fence = 1 WHERE id = %s", [again.lease_id])
    story.conn.execute("UPDATE store.lease SET expires_at = now() - interval '1 hour'")
    assert [orphan.lease_id for orphan in node_beats.beat(story.conn, "box", "life-1").orphans] == [again.lease_id]


def granted_again(story: Story):
    no = story.issue(RequestDevices(pool="default", engines=1, trainers=0, engine_devices=2))
    return leases.grant(story.conn, story.lease, no, PLACES[:2])[0]


def test_a_drain_of_any_device_concerns_the_engine(story):
    engine, _ = granted(story)
    cordons.drain(story.conn, "device", "box.cpu0", DrainMode.MOVE, deadline=None, by="ada")
    (drained,) = cordons.drained_leases(story.conn)
    assert (drained.lease_id, drained.device_id, drained.where) == (engine.lease_id, "box.cpu0", "box.cpu0")


def test_all_devices_work_in_an_engines_intervals_and_what_it_moved_counts_once(story):
    engine, _ = granted(story)
    row = intervals.BusyInterval(0, "rollout", "solver", 1.0, 3.0, tokens=7, steps=2, prompts=5, cpu=1.5)
    for _ in range(2):
        intervals.put(story.conn, 1, engine.lease_id, "box.cpu2", incarnation="e1.1.1", rows=[row])
    kept = story.conn.execute(
        "SELECT device_id, t1 - t0, tokens, steps, prompts, cpu FROM store.interval ORDER BY device_id"
    ).fetchall()
    assert kept == [("box.cpu0", 2.0, 0, 0, 0, 0.0), ("box.cpu2", 2.0, 7, 2, 5, 1.5)]


def test_an_engine_is_listed_once_with_its_devices(story):
    granted(story)
    (row,) = engine_rows.engines(story.conn, 1)
    assert (row.device_id, row.devices) == ("box.cpu2", ("box.cpu2", "box.cpu0"))
    story.conn.execute("UPDATE store.lease SET state = 'ended'")
    (row,) = engine_rows.engines(story.conn, 1)
    assert row.devices == ("box.cpu2", "box.cpu0")


def test_hosts_of_a_pool_are_counted_by_whole_devices_of_one_kind(story):
    facts = [leases.DeviceFacts(f"gpus.gpu{i}", "cuda", i, facts={"share": 0.5}) for i in range(2)]
    facts += [leases.DeviceFacts("gpus.cpu0", "cpu", 2)]
    leases.register_node(story.conn, leases.NodeFacts("gpus", "127.0.0.1:2", "life-1", "0"), facts)
    assert sorted(leases.supply(story.conn).hosts["default"]) == [1, 4]
