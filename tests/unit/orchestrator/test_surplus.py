"""Engines above a minimum: who is served before them, and which of them leave for whom."""

from flexmarl.orchestrator.pool.arbiter import PrecedenceReason, Unmet, arbitrate
from flexmarl.orchestrator.pool.surplus import in_words, leaves
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules, SurplusEngine


def demand(run, engines=1, trainers=0, **more):
    return DeviceDemand(run, 1, "default", engines, "", trainers, **more)


def join(run, **more):
    return demand(run, extra=True, running=True, holds={"default": 2}, **more)


def device(number, node="box", **more):
    return FreeDevice(f"{node}.{number}", node, "default", **more)


def engine(run, lease, *devices, **more):
    return SurplusEngine(run, lease, devices or (device(lease),), **more)


def rules(capacity=8, **more):
    return Rules({"default": capacity}, **more)


def asked(demands, surplus, free=(), **more):
    at = rules(**more)
    return leaves(demands, arbitrate(demands, free, at), free, at, surplus)


def test_a_fleet_grows_only_where_nobody_waits():
    both = [join(1, priority=99, since=0), demand(2, engines=2, since=100)]
    result = arbitrate(both, [device(1)], rules())
    assert not result.grants, "the free device is kept for who waits, although it does not suffice"
    first, second = result.waiting
    assert (first.run_id, first.requirement.code) == (2, Unmet.NOT_FREE)
    assert (second.run_id, second.requirement.code) == (1, Unmet.BEHIND)
    assert second.requirement.behind_why is PrecedenceReason.MINIMUM
    granted = arbitrate(both, [device(n) for n in (1, 2, 3)], rules()).grants
    assert [grant.run_id for grant in granted] == [2, 1]


def test_a_run_that_can_never_start_keeps_nobody_from_growing():
    both = [join(1), demand(2, engines=9)]
    assert [grant.run_id for grant in arbitrate(both, [device(1)], rules(8)).grants] == [1]


def test_free_devices_go_to_the_fleet_of_the_project_that_holds_less():
    both = [join(1, project="a"), join(2, project="b")]
    held = {("a", "default"): 4, ("b", "default"): 2}
    assert [grant.run_id for grant in arbitrate(both, [device(1)], rules(held=held)).grants] == [2]


def test_a_fleet_that_finds_no_host_keeps_no_other_from_growing():
    wide = join(1, engine_devices=2, since=0)
    found = arbitrate([wide, join(2, since=1)], [device(1, "one"), device(1, "two")], rules(hosts={"default": [4, 4]}))
    assert [grant.run_id for grant in found.grants] == [2]


def test_a_quota_counts_what_joins():
    at = rules(quotas={("default", "default"): 2}, held={("default", "default"): 2})
    result = arbitrate([join(1)], [device(1)], at)
    assert result.waiting[0].requirement.code is Unmet.QUOTA_REACHED


def test_as_few_leave_as_the_waiting_run_needs():
    found = asked([demand(2, trainers=1)], [engine(1, 5), engine(1, 6), engine(1, 7)], [device(1)])
    assert [(one.run_id, one.lease_id, one.for_run) for one in found] == [(1, 7, 2)]
    assert in_words(found[0]) == "run 2 waits for 2 devices in default"


def test_nobody_leaves_where_it_would_not_suffice():
    assert not asked([demand(2, engines=4)], [engine(1, 5), engine(1, 6)], [device(1)])


def test_nobody_leaves_for_a_fleet_that_would_grow():
    assert not asked([join(2)], [engine(1, 5)])


def test_lower_priorities_leave_first_then_the_youngest():
    three = [engine(1, 5, priority=60), engine(3, 6, priority=40), engine(3, 4, priority=40)]
    assert [one.lease_id for one in asked([demand(2)], three)] == [6]
    assert [one.lease_id for one in asked([demand(2, engines=3)], three)] == [6, 4, 5]


def test_an_engine_of_several_devices_makes_whole_hosts_free():
    surplus = [engine(1, 8, device(1, "one")), engine(1, 7, device(1, "two")), engine(1, 6, device(2, "two"))]
    wide = demand(2, engines=1, engine_devices=2)
    found = asked([wide], surplus, hosts={"default": [2, 2]})
    assert [one.lease_id for one in found] == [7, 6], "the device of the other host would help nobody"


def test_a_project_makes_room_in_its_own_quota():
    at = {"quotas": {("a", "default"): 3}, "held": {("a", "default"): 3}}
    surplus = [engine(3, 9, project="b"), engine(1, 5, project="a")]
    found = asked([demand(2, project="a")], surplus, [device(1)], **at)
    assert [one.lease_id for one in found] == [5]


def test_memory_that_leaves_with_an_engine_is_there_for_others():
    gpu = device(5, room="box.5")
    full = {"memory": {"box.5": 0}, "held": {}}
    wants = DeviceDemand(2, 1, "default", 1, "", 0, memory={"engine": 8})
    assert [one.lease_id for one in asked([wants], [engine(1, 5, gpu, memory=8)], **full)] == [5]
    assert not asked([wants], [engine(1, 5, gpu, memory=4)], **full)


def test_a_run_that_lost_its_trainer_makes_room_for_it_itself():
    lost = demand(1, engines=0, trainers=1, running=True, holds={"default": 3}, stalled=True)
    assert [one.lease_id for one in asked([lost], [engine(1, 5), engine(1, 6)])] == [6]
