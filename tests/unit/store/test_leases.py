"""A device has one lease and a lease one host; a device is free only when its host proved it."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from flexmarl.contracts.commands import HostLease, RequestDevices
from flexmarl.contracts.events import DeviceUse
from flexmarl.contracts.status import RunStatus
from flexmarl.store.control import cordons, deletions, leased_memory, leases, node_beats, runs
from flexmarl.store.control.cordons import DrainMode
from flexmarl.store.control.runs import RunLease
from flexmarl.store.control.unclaimed import end_unclaimed
from flexmarl.store.errors import FenceLost, LeaseLost
from tests.support.store_story import Story

pytestmark = pytest.mark.services

BOTH = [("box.cpu0", DeviceUse.ENGINE), ("box.cpu1", DeviceUse.TRAINER)]


def request(story):
    return story.issue(RequestDevices(pool="default", engines=1, trainers=1))


def test_of_many_drivers_one_leases_a_device(store_conn, store_url):
    stories = [Story(store_conn, run_id=run, owner=f"driver-{run}").start() for run in range(1, 7)]
    stories[0].register()
    orders = [(story.lease, request(story)) for story in stories]

    def grant(order):
        with psycopg.connect(store_url, autocommit=True) as conn:
            return leases.grant(conn, *order, BOTH)

    with ThreadPoolExecutor(6) as pool:
        granted = list(pool.map(grant, orders))
    assert sum(one is not None for one in granted) == 1
    row = store_conn.execute("SELECT count(*), count(DISTINCT run_id) FROM store.lease").fetchone()
    assert row == (2, 1)
    assert leases.supply(store_conn).free == []


def test_a_gang_is_granted_whole_or_not_at_all(story):
    story.register()
    no = request(story)
    assert leases.grant(story.conn, story.lease, no, [BOTH[0], ("box.cpu0", DeviceUse.TRAINER)]) is None
    assert story.count("lease") == 0
    assert [demand.no for demand in leases.open_demands(story.conn)] == [no]
    assert leases.grant(story.conn, story.lease, no, BOTH) is not None
    assert leases.open_demands(story.conn) == []
    assert story.kinds() == ["devices_granted"]
    assert leases.grant(story.conn, story.lease, no, BOTH) is None  # answered once


def test_a_driver_that_lost_the_run_grants_nothing(story):
    story.register()
    no = request(story)
    with pytest.raises(FenceLost):
        leases.grant(story.conn, RunLease(1, "somebody", 9), no, BOTH)
    assert story.count("lease") == 0


def test_devices_of_a_silent_or_cordoned_node_are_not_offered(story):
    story.register()
    assert leases.supply(story.conn).capacity == {"default": 2}
    story.conn.execute("UPDATE store.device SET state = 'cordoned' WHERE id = 'box.cpu0'")
    assert [device.id for device in leases.supply(story.conn).free] == ["box.cpu1"]
    story.conn.execute("UPDATE store.node SET heartbeat_at = heartbeat_at - interval '1 minute'")
    assert leases.supply(story.conn).free == []
    assert node_beats.beat(story.conn, "box", "life-1").alive
    assert leases.supply(story.conn).capacity == {"default": 1}


def test_a_second_agent_of_the_same_name_replaces_the_first(story):
    story.register()
    node = leases.NodeFacts("box", "127.0.0.1:2", "life-2", "0")
    leases.register_node(story.conn, node, [leases.DeviceFacts("box.cpu0", "cpu", 0)])
    assert not node_beats.beat(story.conn, "box", "life-1").alive
    assert node_beats.beat(story.conn, "box", "life-2").alive
    assert [device.id for device in leases.devices_of(story.conn, "box")] == ["box.cpu0"]


def test_whoever_starts_waits_for_the_agent_of_its_time_since_a_former_one_had_other_devices(story):
    story.register()
    story.conn.execute("UPDATE store.node SET heartbeat_at = heartbeat_at - interval '30 seconds'")
    assert leases.devices_of(story.conn, "box", within_s=20.0) == []
    facts = [leases.DeviceFacts(f"box.cpu{n}", "cpu", n) for n in range(4)]
    leases.register_node(story.conn, leases.NodeFacts("box", "127.0.0.1:2", "life-2", "0"), facts)
    assert len(leases.devices_of(story.conn, "box", within_s=20.0)) == 4


def test_a_new_host_fences_the_old_one_and_tells_its_child_lost(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    taken, old = story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    leases.child_started(story.conn, old, 4711, 12.5)
    story.lapse(taken.no)
    heir = leases.take_hosting(story.conn, story.take(taken.no), 30)
    assert (heir.fence, heir.former_pid, heir.former_pid_started) == (old.fence + 1, 4711, 12.5)
    assert not leases.renew(story.conn, old, 30).held
    for write in (
        lambda: leases.child_started(story.conn, old, 1, 1.0),
        lambda: leases.child_ready(story.conn, old, "e9", "http://x", "s"),
        lambda: leases.end(story.conn, taken, old, "done"),
    ):
        with pytest.raises(LeaseLost):
            write()
    leases.child_lost(story.conn, old, "e1", "late")
    assert leases.renew(story.conn, heir, 30) == leases.Renewal(True, False, "")
    assert story.kinds().count("child_lost") == 1


def test_a_lease_let_go_is_hosted_again_at_once(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    taken, hosting = story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    leases.let_go(story.conn, hosting)
    again = story.take(taken.no)
    assert leases.take_hosting(story.conn, again, 30).fence == hosting.fence + 1


def test_an_ended_lease_frees_the_device_and_finishes_the_command(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    taken, hosting = story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    leases.request_release(story.conn, 1, lease_id)
    assert leases.renew(story.conn, hosting, 30).releasing
    assert leases.endpoint(story.conn, lease_id) is None
    leases.end(story.conn, taken, hosting, "released")
    assert [device.id for device in leases.supply(story.conn).free] == ["box.cpu0"]
    assert story.kinds()[-1] == "lease_ended"
    status = story.conn.execute("SELECT status FROM store.command WHERE no = %s", [taken.no]).fetchone()
    assert status == ("done",)
    late = story.take(story.issue(HostLease(lease_id=lease_id, device_id="box.cpu0", use=DeviceUse.ENGINE)))
    assert leases.take_hosting(story.conn, late, 30) is None


def test_a_lease_nobody_hosts_is_an_orphan_only_when_it_should_end(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    _, hosting = story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    leases.child_started(story.conn, hosting, 4711, 12.5)
    leases.let_go(story.conn, hosting)
    story.conn.execute("UPDATE store.lease SET expires_at = clock_timestamp() - interval '1 s'")
    assert node_beats.beat(story.conn, "box", "life-1").orphans == []  # held by a living run: a device worker will come
    story.status = RunStatus.KILLED
    story.decide()
    found = {orphan.lease_id: orphan for orphan in node_beats.beat(story.conn, "box", "life-1").orphans}
    assert (found[lease_id].pid, found[lease_id].pid_started) == (4711, 12.5)
    assert leases.end_orphan(story.conn, found[lease_id], "gone")
    assert not leases.end_orphan(story.conn, found[lease_id], "gone")


def test_a_lease_that_is_renewed_is_no_orphan(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    _, hosting = story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    leases.request_release(story.conn, 1, lease_id)
    orphan = leases.Orphan(lease_id, 1, None, 0.0)
    leases.renew(story.conn, hosting, 30)
    assert node_beats.beat(story.conn, "box", "life-1").orphans == []
    assert not leases.end_orphan(story.conn, orphan, "gone")


def test_an_expired_lease_loses_its_child_and_keeps_its_device(story):
    lease_id = story.granted()[DeviceUse.ENGINE]
    _, hosting = story.hosted(lease_id, DeviceUse.ENGINE, "e1")
    assert leases.expire(story.conn, 1) == []
    story.conn.execute("UPDATE store.lease SET expires_at = clock_timestamp() - interval '1 s'")
    assert leases.expire(story.conn, 1) == [lease_id]
    assert leases.expire(story.conn, 1) == []
    assert story.kinds()[-1] == "child_lost"
    assert leases.renew(story.conn, hosting, 30) == leases.Renewal(True, False, "")  # its host sees it and restarts
    assert leases.supply(story.conn).free == []


def test_engines_of_a_node_that_is_gone_are_wanted_elsewhere(story):
    granted = story.granted()
    engine = granted[DeviceUse.ENGINE]
    assert cordons.engines_of_silent_nodes(story.conn, [1]) == []
    silence = f"interval '{cordons.SILENT_S + 1} s'"
    story.conn.execute(f"UPDATE store.node SET heartbeat_at = clock_timestamp() - {silence}")
    [found] = cordons.engines_of_silent_nodes(story.conn, [1, 2])
    assert (found.lease_id, found.mode, found.where) == (engine, DrainMode.MOVE, "box"), "trainers stay"
    assert found.reason == "node box has sent no heartbeat for more than 90 s"
    assert cordons.engines_of_silent_nodes(story.conn, [2]) == []
    sharing = "UPDATE store.lease SET device_id = 'box.cpu0', beside = %s WHERE use = 'trainer'"
    story.conn.execute(sharing, [engine])
    assert cordons.engines_of_silent_nodes(story.conn, [1]) == [], "it shares its device with a trainer"


def test_a_lease_that_nobody_took_ends_with_its_node(story):
    """The node's last heartbeat was young enough for the grant."""
    granted = story.granted()
    engine, trainer = granted[DeviceUse.ENGINE], granted[DeviceUse.TRAINER]
    story.hosted(trainer, DeviceUse.TRAINER, "t1")
    assert end_unclaimed(story.conn, 1) == []
    story.conn.execute("UPDATE store.lease SET expires_at = clock_timestamp() - interval '1 s'")
    assert end_unclaimed(story.conn, 1) == [], "its node lives and may be slow"
    story.conn.execute("UPDATE store.node SET heartbeat_at = heartbeat_at - interval '1 minute'")
    assert end_unclaimed(story.conn, 1) == [engine], "the other one had a host: something of it may run"
    assert end_unclaimed(story.conn, 1) == []
    assert story.kinds()[-1] == "lease_ended"
    taken = story.take(story.issue(HostLease(lease_id=engine, device_id="box.cpu0", use=DeviceUse.ENGINE)))
    assert leases.take_hosting(story.conn, taken, 30) is None, "who wakes up too late"


def test_a_dropped_run_leaves_no_rows_and_may_be_dropped_again(story, another):
    story.settle(0, 1)
    second = Story(another(), run_id=2, owner="driver-2").start()
    second.settle(0)
    story.status = RunStatus.COMPLETED
    story.decide()
    deletions.drop_run(story.conn, 1)
    deletions.drop_run(story.conn, 1)
    tables = ("episode", "sample", "event", "command", "handled", "run_state")
    assert [story.count(table) for table in tables] == [0] * len(tables)
    assert second.count("sample") == 2
    assert story.conn.execute("SELECT to_regclass('store.sample_1')").fetchone() == (None,)


def test_a_living_run_is_not_dropped(story):
    with pytest.raises(Exception, match="only an ended run"):
        deletions.drop_run(story.conn, 1)


def test_a_new_run_does_not_wait_for_open_writers(story, another):
    writer, creator = another(), another()
    creator.execute("SET lock_timeout = '300ms'")
    with writer.transaction():
        taken = story.take(story.play(0))
        writer_story = Story(writer)
        from flexmarl.store.data import groups

        groups.put_groups(writer, taken, [writer_story.group(0, taken)])
        runs.create_run(creator, 2, {}, RunStatus.QUEUED)


def test_memory_is_leased_with_devices_and_never_more_than_there_is(store_conn, store_url):
    """CPU devices of a node share one memory; the part of a lease that ended is free again."""
    stories = [Story(store_conn, run_id=run, owner=f"driver-{run}").start() for run in (1, 2)]
    facts = [leases.DeviceFacts(f"box.cpu{no}", "cpu", no, memory_bytes=100) for no in range(4)]
    leases.register_node(store_conn, leases.NodeFacts("box", "127.0.0.1:1", "life-1", "0"), facts)
    assert leased_memory.left(store_conn) == {"box": 400}
    orders = [(story, request(story), [(f"box.cpu{2 * at}", DeviceUse.ENGINE)]) for at, story in enumerate(stories)]

    def grant(conn, order):
        story, no, placements = order
        return leases.grant(conn, story.lease, no, placements, {placements[0][0]: 250})

    with psycopg.connect(store_url) as first, psycopg.connect(store_url, autocommit=True) as second:
        with ThreadPoolExecutor(1) as pool:
            with first.transaction():
                assert grant(first, orders[0]) is not None
                later = pool.submit(grant, second, orders[1])
                with pytest.raises(TimeoutError):  # it waits for the other's commit, and would see 400 free until then
                    later.result(1.0)
            assert later.result(10.0) is None
        assert leased_memory.left(store_conn) == {"box": 150}
        store_conn.execute("UPDATE store.lease SET state = 'ended', ended_at = now()")
        assert leased_memory.left(store_conn) == {"box": 400}
        assert grant(second, orders[1]) is not None
