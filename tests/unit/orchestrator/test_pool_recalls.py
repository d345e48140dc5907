"""Runs that each hold a part of a gang and wait for the rest: one gives its part back, and somebody always gets on."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexmarl.contracts.events import DeviceUse, GangRecalled, LeaseEnded, TimerFired, Verb
from flexmarl.contracts.status import RunReason, RunStatus
from flexmarl.orchestrator.pool.arbiter import Unmet, arbitrate
from flexmarl.orchestrator.pool.recalls import RECALL_AFTER_S, in_words, recalls
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules
from tests.unit.orchestrator.asking import account, ask
from tests.unit.orchestrator.fake_cluster import make_spec, running

LATE = RECALL_AFTER_S + 100.0


def part(run_id, lacks=1, holds=1, pool="p", **more):
    """A run that lost devices: it holds some of `pool` and lacks others there."""
    more = {"since": float(run_id), "running": True, "stalled": True, **more}
    return DeviceDemand(run_id, 1, pool, lacks, "", 0, holds={pool: holds}, **more)


def wanted_back(demands, free=(), capacity=2, now=LATE, **rules):
    known = Rules({"p": capacity, "q": capacity}, now=now, **rules)
    there = [FreeDevice(f"a.{pool}{i}", "a", pool) for i, pool in enumerate(free)]
    return recalls(demands, arbitrate(demands, there, known), there, known)


def recalled(*args, **options):
    return [one.run_id for one in wanted_back(*args, **options)]


def test_of_two_runs_that_hold_what_the_other_lacks_the_younger_gives_its_part_back():
    assert recalled([part(1), part(2)]) == [2]
    assert recalled([part(2), part(1)]) == [2]


def test_priority_decides_before_age():
    assert recalled([part(1, priority=10), part(2)]) == [1]


def test_nobody_is_recalled_before_the_host_had_time_to_come_back():
    assert recalled([part(1, since=LATE - 1), part(2, since=LATE - 1)]) == []
    assert recalled([part(1), part(2, since=LATE - 1)]) == []


def test_nobody_is_recalled_when_that_completes_nobody():
    assert recalled([part(1, lacks=3), part(2, lacks=3)], capacity=9) == [], "two devices more would not be three"


def test_a_run_that_works_with_what_it_holds_keeps_it():
    assert recalled([part(1), part(2, stalled=False)]) == []


def test_who_does_not_help_keeps_what_it_holds():
    assert recalled([part(1, lacks=2, holds=2), part(2, pool="q"), part(3, holds=2)], capacity=4) == [3]


def test_as_many_are_recalled_as_the_first_one_lacks_and_no_more():
    waiting = [part(1, lacks=2), part(2), part(3), part(4)]
    assert recalled(waiting, capacity=4) == [4, 3]
    assert recalled(waiting, free="p", capacity=5) == [4]


def test_a_run_whose_gang_the_pool_cannot_hold_any_more_makes_way_whatever_its_priority():
    big = part(1, lacks=3, holds=2, priority=90)
    [one] = wanted_back([big, part(2, lacks=1, holds=1)], capacity=3)
    assert (one.run_id, one.for_run, one.never) == (1, 2, True)
    assert in_words(one).startswith("a part of its devices is permanently lost; the pool is too small")
    new = DeviceDemand(3, 1, "p", 2, "", 0, since=3.0)
    assert recalled([big, new], capacity=3) == [1], "also for a run that has not begun"


def test_a_run_that_can_never_be_completed_does_not_fill_its_projects_quota_for_ever():
    quota = {"quotas": {("default", "p"): 3}, "held": {("default", "p"): 3}}
    big, new = part(1, lacks=1, holds=2), DeviceDemand(2, 1, "p", 1, "", 0, since=2.0)
    assert recalled([big, new], capacity=2, **quota) == [1]
    assert recalled([big, new], capacity=3, **quota) == [], "a node that comes back completes it"
    other = {"quotas": {("game", "p"): 0}, "held": {}}
    game = DeviceDemand(2, 1, "p", 1, "", 0, "game", since=2.0)
    assert recalled([big, game], capacity=2, **other) == [], "its devices do not help against another's quota"


def test_a_quota_never_keeps_a_run_from_the_rest_of_its_gang():
    lowered = {"quotas": {("default", "p"): 1}, "held": {("default", "p"): 2}}
    demand = part(1)
    result = arbitrate([demand], [FreeDevice("a.p0", "a", "p")], Rules({"p": 2}, now=LATE, **lowered))
    assert [grant.run_id for grant in result.grants] == [1]


def test_what_a_run_lacks_of_its_gang_is_its_seat_and_no_other_run_of_the_project_gets_it():
    seats = {"quotas": {("default", "p"): 2}, "held": {("default", "p"): 2}}
    new = DeviceDemand(2, 1, "p", 1, "", 0, since=0.0)
    result = arbitrate([part(1), new], [FreeDevice("a.p0", "a", "p")], Rules({"p": 2}, now=LATE, **seats))
    assert [grant.run_id for grant in result.grants] == [1]
    assert result.waiting[0].requirement.code is Unmet.QUOTA_REACHED


gangs = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2)), min_size=2, max_size=6)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(gangs=gangs, spare=st.integers(0, 2), late=st.lists(st.integers(2, 4), max_size=3))
def test_whatever_was_lost_everybody_the_pool_can_hold_is_served_in_the_end(gangs, spare, late):
    """Each run holds some, has lost some for good, and lives for one round after it is complete."""
    waiting, holds = {}, {}
    for run, (kept, lost, rank) in enumerate(gangs, 1):
        holds[run] = kept
        waiting[run] = part(run, lacks=lost, holds=kept, priority=10 * rank)
    for run, count in enumerate(late, len(gangs) + 1):
        waiting[run] = DeviceDemand(run, 1, "p", count, "", 0, since=float(run))
    whole = {run: holds.get(run, 0) + demand.engines for run, demand in waiting.items()}
    capacity = sum(holds.values()) + spare
    possible = {run for run, count in whole.items() if count <= capacity}
    done = set()
    for _ in range(6 * len(waiting) + 6):
        if possible <= done:
            break
        number = capacity - sum(holds.values())
        free = [FreeDevice(f"a.p{i}", "a", "p") for i in range(number)]
        known = Rules({"p": capacity}, now=LATE)
        demands = list(waiting.values())
        result = arbitrate(demands, free, known)
        for grant in result.grants:
            holds.pop(grant.run_id, None)  # it works, ends and gives everything back
            done.add(grant.run_id)
            del waiting[grant.run_id]
        if result.grants:
            continue
        back = recalls(demands, result, free, known)
        assert back, "nobody is served, and nobody makes way"
        assert {one.run_id for one in back} <= holds.keys(), "who holds nothing gives nothing"
        for one in back:
            holds.pop(one.run_id)
            waiting[one.run_id] = DeviceDemand(one.run_id, 2, "p", whole[one.run_id], "", 0, since=LATE, running=True)
    assert possible <= done


def lost_for_good(use, seed=3, **spec):
    """A run in the middle of a cohort that lost a device; no other is free."""
    cluster = running(make_spec(**spec), seed=seed).run(
        until=lambda x: x.core.state.cohort is not None and x.core.state.cohort.open and x.core.state.step == 1
    )
    cluster.grants = False
    lease = next(iter(cluster.core.state.fleet.at_work(use)))
    cluster.children.pop(lease.lease_id, None)
    cluster.ended.add(lease.lease_id)
    cluster.tell(LeaseEnded(lease_id=lease.lease_id, reason="the device is gone"))
    return cluster


def recall(cluster, number=None):
    number = number or cluster.core.state.outstanding["devices"].no
    return cluster.tell(GangRecalled(command_no=number, reason="others can go on with what it has"))


@pytest.mark.parametrize("use", list(DeviceUse))
def test_a_recalled_run_gives_all_back_and_goes_on_with_a_whole_gang(use):
    cluster = lost_for_good(use, budget__train_steps=4)
    decision = recall(cluster)
    assert all(lease.releasing for lease in cluster.core.state.fleet.leases.values())
    [asked] = [n.command for n in decision.commands if n.command.kind == "request_devices"]
    assert (asked.engines, asked.trainers, asked.replaces) == (1, 1, 0)
    assert any("releases all its devices" in note.text for note in decision.notes)
    assert all("permanently lost" in n.reason for n in decision.commands if n.command.kind == "release_lease")
    assert cluster.core.state.lifecycle.reason is RunReason.WAITING_FOR_DEVICES
    cluster.grants = True
    cluster.run()
    assert (cluster.status, cluster.core.state.step) == (RunStatus.COMPLETED, 4)
    account(cluster)


def test_a_recall_of_a_request_that_was_answered_changes_nothing():
    cluster = lost_for_good(DeviceUse.TRAINER)
    number = cluster.core.state.outstanding["devices"].no
    cluster.grants = True
    cluster.run(until=lambda x: "devices" not in x.core.state.outstanding)
    before = [lease.lease_id for lease in cluster.core.state.fleet.leases.values() if not lease.releasing]
    assert not recall(cluster, number).commands
    assert [lease.lease_id for lease in cluster.core.state.fleet.leases.values() if not lease.releasing] == before


@pytest.mark.parametrize("verb", [Verb.STOP, Verb.PAUSE, Verb.KILL])
def test_verbs_reach_a_recalled_run(verb):
    cluster = lost_for_good(DeviceUse.ENGINE)
    recall(cluster)
    ask(cluster, verb)
    cluster.grants = True
    cluster.run(until=lambda x: x.status in (RunStatus.COMPLETED, RunStatus.PAUSED, RunStatus.KILLED))
    if verb is Verb.PAUSE:
        ask(cluster, Verb.RESUME)
        cluster.run()
        assert cluster.status is RunStatus.COMPLETED
    while cluster.inbox:
        cluster.deliver(0)
    account(cluster)


def test_a_second_loss_asks_for_the_whole_gang_again():
    cluster = lost_for_good(DeviceUse.TRAINER)
    other = next(iter(cluster.core.state.fleet.at_work(DeviceUse.ENGINE)))
    decision = cluster.tell(LeaseEnded(lease_id=other.lease_id, reason="the host is gone"))
    [asked] = [n.command for n in decision.commands if n.command.kind == "request_devices"]
    assert (asked.engines, asked.trainers) == (1, 1)
    assert decision.void, "the former request is void"
    assert not cluster.tell(TimerFired()).commands


def test_all_pairs_of_ranks_agree_on_one_victim():
    ranks = [(10, 1.0), (10, 2.0), (50, 1.0), (50, 2.0), (90, 3.0)]
    for (high, old), (low, young) in combinations(sorted(ranks, key=lambda r: (-r[0], r[1])), 2):
        first = part(1, priority=high, since=old)
        second = part(2, priority=low, since=young)
        assert recalled([first, second]) == [2]
        assert Counter(recalled([second, first])) == {2: 1}
