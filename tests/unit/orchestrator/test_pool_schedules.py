"""The arbiter over time: runs come, get gangs, lose and move devices, and end, in any order; devices break for good.

At every moment: gangs are whole, quotas hold whole gangs while leases move and are lost, nobody who waits for first
devices holds any. In the end everybody whom the pools can still hold was served, those too that each hold a part of
what another lacks, although younger and more urgent demands never stopped coming.
"""

import os
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flexmarl.orchestrator.pool.arbiter import NEVER, PATIENCE_S, PrecedenceReason, Unmet, arbitrate
from flexmarl.orchestrator.pool.recalls import recalls
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules, wanted_of

USUAL = 80
EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", USUAL))
PROJECTS = ("math", "game", "shop")
DEVICES = [FreeDevice(f"{node}.{pool}{i}", node, pool) for node in "abc" for pool in ("p", "q") for i in range(2)]
CAPACITY = Counter(device.pool for device in DEVICES)


class Pool(RuleBasedStateMachine):
    """Runs and devices between two drivers' looks."""

    @initialize(
        quotas=st.dictionaries(
            st.tuples(st.sampled_from(PROJECTS), st.sampled_from("pq")), st.integers(2, 5), max_size=3
        ),
        weights=st.dictionaries(st.sampled_from(PROJECTS), st.sampled_from([0.5, 2.0, 4.0])),
    )
    def begin(self, quotas, weights):
        self.quotas, self.weights = quotas, weights
        self.now, self.runs = 0.0, 0
        self.waiting: dict[int, DeviceDemand] = {}
        self.holds: dict[int, list[str]] = {}
        self.project: dict[int, str] = {}
        self.moving: dict[int, str] = {}
        """Run -> device that it gives back when its replacement is there."""
        self.gang: dict[int, DeviceDemand] = {}
        self.broken: set[str] = set()

    def known(self):
        gone = Counter(pool_of(device) for device in self.broken)
        return Rules(dict(CAPACITY - gone), {}, self.quotas, self.seats(), self.weights, self.now)

    def seats(self):
        """Count gangs whole: a device and the one that replaces it are one seat, and so is one that was lost."""
        counts = Counter()
        for run, devices in self.holds.items():
            counts.update((self.project[run], pool_of(device)) for device in devices)
            if devices and run in self.waiting and run not in self.moving:
                counts.update({(self.project[run], p): n for p, n in wanted_of(self.waiting[run]).items()})
        return counts

    def free(self):
        taken = {device for devices in self.holds.values() for device in devices} | self.broken
        return [device for device in DEVICES if device.device_id not in taken]

    def recall(self, result):
        """Let runs that cannot be completed give their part back; tells whether one did."""
        back = recalls(list(self.waiting.values()), result, self.free(), self.known())
        for one in back:
            assert self.holds[one.run_id], "who holds nothing gives nothing"
            del self.holds[one.run_id]
            gang = self.gang[one.run_id]
            self.waiting[one.run_id] = replace(gang, command_no=3, since=self.now, running=True)
        return bool(back)

    def ask(self, project, priority, engines, trainers, pools):
        self.runs += 1
        run = self.runs
        self.project[run] = project
        self.waiting[run] = DeviceDemand(
            run, 1, pools[0], engines, pools[1], trainers, project, priority, self.now, running=False
        )
        self.gang[run] = self.waiting[run]
        return run

    def serve(self):
        result = arbitrate(list(self.waiting.values()), self.free(), self.known())
        free = {device.device_id for device in self.free()}
        for grant in result.grants:
            demand = self.waiting.pop(grant.run_id)
            got = [placement.device_id for placement in grant.placements]
            assert Counter(map(pool_of, got)) == wanted_of(demand), "all of a gang or none"
            assert free.issuperset(got), "a device was given twice"
            free.difference_update(got)
            back = self.moving.pop(grant.run_id, None)
            kept = [device for device in self.holds.get(grant.run_id, []) if device != back]
            self.holds[grant.run_id] = kept + got
        return result

    @rule(
        project=st.sampled_from(PROJECTS),
        priority=st.sampled_from([10, 50, 50, 90]),
        engines=st.integers(1, 3),
        trainers=st.integers(0, 2),
        pools=st.sampled_from([("p", "p"), ("p", "q"), ("q", "q"), ("q", "p")]),
    )
    def a_run_asks(self, project, priority, engines, trainers, pools):
        self.ask(project, priority, engines, trainers, pools)

    @rule(seconds=st.sampled_from([1.0, 600.0, PATIENCE_S]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def a_driver_looks(self):
        self.serve()

    @rule(which=st.integers(0, 9))
    def a_run_ends(self, which):
        there = sorted(self.holds.keys() - self.waiting.keys())
        if there:
            self.holds.pop(there[which % len(there)])

    @rule(which=st.integers(0, 9), keeps=st.booleans(), breaks=st.booleans())
    def a_device_is_wanted_back_or_lost(self, which, keeps, breaks):
        there = sorted(run for run in self.holds if run not in self.waiting and self.holds[run])
        if not there:
            return
        run = there[which % len(there)]
        self.take(run, self.holds[run][0], keeps, breaks)

    @rule(pool=st.sampled_from("pq"))
    def a_pool_shrinks_to_parts_of_gangs(self, pool):
        """What is free breaks for good, and one device of each gang."""
        self.broken.update(device.device_id for device in self.free() if device.pool == pool)
        for run in sorted(self.holds.keys() - self.waiting.keys()):
            own = [device for device in self.holds[run] if pool_of(device) == pool]
            if len(self.holds[run]) > 1 and own:
                self.take(run, own[0], keeps=False, breaks=True)

    def take(self, run, device, keeps, breaks):
        if keeps:
            self.moving[run] = device
        else:
            self.holds[run].remove(device)
            self.broken.update({device} if breaks else ())
        left = Counter(map(pool_of, self.holds[run]))
        self.waiting[run] = DeviceDemand(
            run, 2, pool_of(device), 1, pool_of(device), 0, self.project[run], self.gang[run].priority, self.now, True,
            keeps, dict(left) if left else None, not keeps,
        )  # fmt: skip

    @rule()
    def a_driver_looks_for_parts(self):
        result = self.serve()
        if not result.grants:
            self.recall(result)

    @invariant()
    def quotas_hold_while_leases_move(self):
        if hasattr(self, "quotas"):
            held = self.seats()
            assert all(held[key] <= limit for key, limit in self.quotas.items()), held

    @invariant()
    def who_waits_for_first_devices_holds_none(self):
        if hasattr(self, "quotas"):
            assert not any(self.holds.get(run) for run, demand in self.waiting.items() if not demand.running)

    def teardown(self):
        """Runs end after a while, and something younger and more urgent comes each time: nobody starves."""
        if not hasattr(self, "quotas"):
            return
        asked = list(self.waiting)
        for _ in range(8 * len(asked) + 8):
            self.now += PATIENCE_S / 2
            result = self.serve()
            if not result.grants:
                self.recall(result)
            for run in [run for run in self.holds if run not in self.waiting or run in self.moving]:
                del self.holds[run]  # a run that moves a device works meanwhile, and ends
                self.waiting.pop(run, None)
            self.ask("game", 99, 1, 1, ("p", "q"))
            never = {w.run_id for w in result.waiting if w.requirement.code in NEVER}
            if self.waiting.keys().isdisjoint(set(asked) - never):
                return
        raise AssertionError(f"still waiting: {sorted(set(asked) & self.waiting.keys())}")


def pool_of(device_id):
    return device_id.partition(".")[2][0]


TestPool = Pool.TestCase
TestPool.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    derandomize=EXAMPLES <= USUAL,
    suppress_health_check=list(HealthCheck),
)


def demand(run_id, project="math", priority=50, count=2, **more):
    return DeviceDemand(run_id, 1, "p", count, "", 0, project, priority, since=more.pop("since", float(run_id)), **more)


FOUR = [FreeDevice(f"a.p{i}", "a", "p") for i in range(4)]


def served(demands, free=FOUR, **rules):
    result = arbitrate(demands, free, Rules({"p": 4}, **rules))
    return [grant.run_id for grant in result.grants], {w.run_id: w.requirement for w in result.waiting}


def test_within_a_priority_the_project_that_holds_less_is_served_first():
    held = {("math", "p"): 2}
    assert served([demand(1, count=2), demand(2, "game", count=2)], FOUR[:2], held=held)[0] == [2]
    assert served([demand(1, count=2), demand(2, "game", priority=10)], FOUR[:2], held=held)[0] == [1]
    assert served([demand(1), demand(2, "game")], FOUR[:2], held={**held, ("game", "p"): 1}, weights={"math": 4.0})[
        0
    ] == [1]


def test_what_a_round_grants_counts_for_the_shares_of_the_same_round():
    granted, waiting = served([demand(1, count=2), demand(2, count=2), demand(3, "game", count=2)])
    assert granted == [1, 3]
    assert waiting[2].code is Unmet.NOT_FREE


def test_a_gang_that_waits_for_its_quota_is_not_overtaken_by_its_own_project():
    rules = {"quotas": {("math", "p"): 3}, "held": {("math", "p"): 1}}
    granted, waiting = served([demand(1, count=3), demand(2, count=1), demand(3, "game", count=1)], FOUR[1:], **rules)
    assert granted == [3]
    assert waiting[1].code is Unmet.QUOTA_REACHED
    assert (waiting[2].code, waiting[2].behind_run) == (Unmet.BEHIND, 1)


def test_who_has_waited_too_long_comes_first():
    young = demand(2, "game", priority=90, since=PATIENCE_S)
    assert served([demand(1, priority=10), young], FOUR[:2], now=PATIENCE_S)[0] == [2]
    assert served([demand(1, priority=10), young], FOUR[:2], now=PATIENCE_S + 1.0)[0] == [1]
    assert served([demand(1, priority=10, count=3), young], FOUR[:2], now=PATIENCE_S + 1.0)[1][2].behind_why is (
        PrecedenceReason.OVERDUE
    )


def test_a_run_that_lacks_a_part_of_its_devices_comes_before_those_that_have_none():
    """Otherwise the one ahead would wait for devices that only the other one could give back."""
    part = demand(2, count=1, running=True, holds={"p": 3})
    lost_all = demand(1, count=4, running=True)
    granted, waiting = served([lost_all, part], FOUR[:1], held={("math", "p"): 4})
    assert granted == [2]
    assert waiting[1].code is Unmet.NOT_FREE
