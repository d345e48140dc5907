"""The arbiter between runs: order, gangs, quotas, bindings, and what each waiting run is told."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.contracts.events import DeviceUse
from flexmarl.orchestrator.pool.arbiter import NEVER, Requirement, Unmet, arbitrate, in_order
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules, wanted_of
from flexmarl.orchestrator.pool.wording import in_words

FREE = [FreeDevice(f"{node}.cpu{i}", node, "default") for node, i in (("b", 0), ("a", 0), ("a", 1))]


def demand(run_id, engines=1, trainers=1, pool="default", trainer_pool="", **more):
    return DeviceDemand(run_id, 1, pool, engines, trainer_pool, trainers, since=more.pop("since", run_id), **more)


def rules(capacity=None, **more):
    return Rules({"default": 3} if capacity is None else capacity, **more)


def said(result):
    return {waiting.run_id: in_words(waiting.requirement) for waiting in result.waiting}


def granted(result):
    return [grant.run_id for grant in result.grants]


def test_a_gang_gets_all_its_devices_on_one_node_or_none():
    result = arbitrate([demand(1), demand(2)], FREE, rules())
    assert [(p.device_id, p.use) for p in result.grants[0].placements] == [
        ("a.cpu0", DeviceUse.ENGINE),
        ("a.cpu1", DeviceUse.TRAINER),
    ]
    assert said(result) == {2: "Needs 2 devices in default, 1 of 3 is free"}


def test_an_engine_goes_to_a_node_that_can_start_it_or_the_run_waits():
    with_vllm = [FreeDevice("c.cpu0", "c", "default", {"torch", "vllm"})]
    without = [FreeDevice(one.device_id, one.node, one.pool, {"torch"}) for one in FREE]
    result = arbitrate([demand(1, engine="vllm")], [*without, *with_vllm], rules({"default": 4}))
    assert [(p.device_id, p.use) for p in result.grants[0].placements] == [
        ("c.cpu0", DeviceUse.ENGINE),
        ("a.cpu0", DeviceUse.TRAINER),
    ]
    waiting = arbitrate([demand(1, engine="vllm")], without, rules({"default": 4}))
    assert said(waiting) == {1: "Needs 2 devices in default, 1 of 4 is free"}
    assert granted(arbitrate([demand(1, engine="torch")], without, rules())) == [1]
    assert granted(arbitrate([demand(1, engine="vllm")], FREE, rules())) == [1], "nodes that do not say may have any"


def test_nobody_overtakes_an_older_demand_unless_it_can_never_be_met():
    result = arbitrate([demand(1, 2, 2), demand(2, 1, 0)], FREE, rules({"default": 4}))
    assert result.grants == ()
    assert said(result)[2] == "Behind run 1, which waits longer for default"
    result = arbitrate([demand(1, 9, 0), demand(2)], FREE, rules())
    assert granted(result) == [2]
    assert said(result) == {1: "Needs 9 devices in default, 3 are healthy: add a node, or request fewer"}


def test_engines_and_trainers_may_come_from_two_pools():
    free, both = [*FREE, FreeDevice("g.gpu0", "g", "gpus")], rules({"default": 3, "gpus": 1})
    result = arbitrate([demand(1, trainer_pool="gpus"), demand(2, 1, 0)], free, both)
    assert [p.device_id for p in result.grants[0].placements] == ["a.cpu0", "g.gpu0"]
    assert len(result.grants) == 2
    assert arbitrate([demand(1, trainer_pool="gpus"), demand(2, 1, 0)], free[::-1], both) == result


def test_a_higher_priority_is_served_first_and_never_overtaken():
    young = demand(2, priority=80, since=99.0)
    assert granted(arbitrate([demand(1), young], FREE, rules())) == [2]
    result = arbitrate([demand(1, 1, 0), demand(2, 2, 2, priority=80)], FREE, rules({"default": 4}))
    assert granted(result) == []
    assert said(result)[1] == "Behind run 2, which has a higher priority for default"
    assert [waiting.run_id for waiting in result.waiting] == [2, 1]


def test_places_are_counted_per_pool():
    free = [FreeDevice("g.gpu0", "g", "gpus")]
    asked = [demand(1, 2, 0), demand(2, 1, 1, trainer_pool="gpus"), demand(3, 2, 0, pool="gpus"), demand(4)]
    result = arbitrate(asked, free, rules({"default": 4, "gpus": 2}))
    assert [dict(waiting.positions) for waiting in result.waiting] == [
        {"default": 1},
        {"default": 2, "gpus": 1},
        {"gpus": 2},
        {"default": 3},
    ]


def test_a_quota_holds_its_own_project_and_nobody_else():
    limit = rules(quotas={("math", "default"): 2}, held={("math", "default"): 2})
    result = arbitrate([demand(1, project="math"), demand(2, project="game")], FREE, limit)
    assert granted(result) == [2]
    assert said(result) == {1: "Project math holds 2 of its 2 devices in default"}
    result = arbitrate([demand(1, 2, 1, project="math")], FREE, limit)
    assert said(result) == {1: "Needs 3 devices in default, the quota of project math is 2"}
    assert result.waiting[0].requirement.code in NEVER


def test_two_grants_of_one_round_count_against_the_quota_together():
    limit = rules(quotas={("math", "default"): 3})
    result = arbitrate([demand(1, project="math"), demand(2, 1, 1, project="math")], [*FREE, *SPARE], limit)
    assert granted(result) == [1]
    assert result.waiting[0].requirement == Requirement(Unmet.QUOTA_REACHED, "default", "math", 2, 2, 3)


SPARE = [FreeDevice("c.cpu0", "c", "default"), FreeDevice("c.cpu1", "c", "default")]


def test_a_replacement_counts_against_no_quota_and_a_closed_pool_keeps_running_work():
    closed = rules(bindings={"default": {"game"}}, quotas={("math", "default"): 2}, held={("math", "default"): 2})
    result = arbitrate([demand(1, project="math")], FREE, closed)
    assert said(result) == {1: "Project math may not use default: bind it to the pool, or move the run to another one"}
    moving = demand(2, 1, 0, project="math", running=True, replaces=True)
    assert granted(arbitrate([demand(1, project="math"), moving], FREE, closed)) == [2]
    assert granted(arbitrate([demand(3, project="math")], FREE, rules(bindings={"default": set()}))) == [3]


WIDE = [
    FreeDevice(f"{node}.gpu{i}", node, "default", kind="cuda")
    for node, count in (("a", 3), ("b", 2))
    for i in range(count)
]


def test_the_devices_of_an_engine_are_of_one_host_in_the_order_of_their_ranks():
    result = arbitrate([demand(1, 2, 1, engine_devices=2)], WIDE, rules({"default": 5}))
    assert [(p.device_id, p.use, p.rank) for p in result.grants[0].placements] == [
        ("a.gpu0", DeviceUse.ENGINE, 0),
        ("a.gpu1", DeviceUse.ENGINE, 1),
        ("b.gpu0", DeviceUse.ENGINE, 0),
        ("b.gpu1", DeviceUse.ENGINE, 1),
        ("a.gpu2", DeviceUse.TRAINER, 0),
    ]


def test_devices_that_lie_on_too_many_hosts_are_no_engine_and_those_behind_wait():
    scattered = [device for device in WIDE if device.device_id in ("a.gpu0", "b.gpu0", "b.gpu1")]
    wide = rules({"default": 5}, hosts={"default": (3, 2)})
    result = arbitrate([demand(1, 1, 0, engine_devices=3), demand(2, 1, 0)], scattered, wide)
    assert granted(result) == []
    assert said(result)[1] == "Needs 3 devices of one host of default for an engine, at most 2 of one host are free"
    assert said(result)[2] == "Behind run 1, which waits longer for default"
    result = arbitrate(
        [demand(1, 2, 0, engine_devices=3), demand(2, 1, 0)], WIDE, rules({"default": 6}, hosts={"default": (3, 2)})
    )
    assert granted(result) == [2], "nobody waits for what no host can be"
    assert said(result)[1] == (
        "Needs 3 devices of one host of default for each of 2 engines, the largest host there has 3 healthy: add a "
        "node, or request engines of fewer devices"
    )


def test_shares_of_a_gpu_and_devices_of_two_kinds_are_no_engine_of_several():
    shares = [replace(device, whole=False) for device in WIDE]
    assert granted(arbitrate([demand(1, 1, 0, engine_devices=2)], shares, rules({"default": 5}))) == []
    assert granted(arbitrate([demand(1, 1, 0)], shares, rules({"default": 5}))) == [1]
    kinds = [FreeDevice("a.gpu0", "a", "default", kind="cuda"), FreeDevice("a.cpu0", "a", "default", kind="cpu")]
    assert granted(arbitrate([demand(1, 1, 0, engine_devices=2)], kinds, rules({"default": 5}))) == []


def test_every_device_of_an_engine_needs_its_memory():
    room = [replace(device, room=device.node) for device in WIDE]
    needs = {DeviceUse.ENGINE: 40}
    asked_for = demand(1, 1, 0, engine_devices=2, memory=needs)
    result = arbitrate([asked_for], room, rules({"default": 5}, memory={"a": 70, "b": 80}))
    assert [(p.device_id, p.memory) for p in result.grants[0].placements] == [("b.gpu0", 40), ("b.gpu1", 40)]
    result = arbitrate([asked_for], room, rules({"default": 5}, memory={"a": 70, "b": 70}))
    assert result.waiting[0].requirement.code is Unmet.MEMORY_LEASED


POOLS = ("a", "b")
PROJECTS = ("math", "game")
asked = st.builds(
    DeviceDemand,
    run_id=st.integers(1, 40),
    command_no=st.just(1),
    pool=st.sampled_from(POOLS),
    engines=st.integers(0, 3),
    trainer_pool=st.sampled_from(("", *POOLS)),
    trainers=st.integers(1, 3),
    project=st.sampled_from(PROJECTS),
    priority=st.sampled_from([10, 50, 90]),
    since=st.integers(0, 5),
    running=st.booleans(),
    replaces=st.booleans(),
    engine_devices=st.sampled_from([1, 1, 2, 3]),
)
devices = st.lists(
    st.tuples(st.sampled_from("xyz"), st.integers(0, 5), st.sampled_from(POOLS)), max_size=10, unique=True
)
pair = st.tuples(st.sampled_from(PROJECTS), st.sampled_from(POOLS))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    demands=st.lists(asked, max_size=8, unique_by=lambda d: d.run_id),
    free=devices,
    spare=st.integers(0, 4),
    bindings=st.dictionaries(st.sampled_from(POOLS), st.sets(st.sampled_from(PROJECTS))),
    quotas=st.dictionaries(pair, st.integers(0, 6)),
    held=st.dictionaries(pair, st.integers(0, 4)),
    shuffle=st.randoms(use_true_random=False),
)
def test_whatever_is_asked_and_free(demands, free, spare, bindings, quotas, held, shuffle):
    there = [FreeDevice(f"{node}.{pool}{i}", node, pool) for node, i, pool in free]
    counts = Counter(device.pool for device in there)
    known = Rules({pool: counts[pool] + spare for pool in POOLS}, bindings, quotas, held)
    result = arbitrate(demands, there, known)

    by_run = {d.run_id: d for d in demands}
    pool_of = {device.device_id: device.pool for device in there}
    assert {g.run_id for g in result.grants} ^ {w.run_id for w in result.waiting} == set(by_run)
    given_out = [p.device_id for g in result.grants for p in g.placements]
    assert len(set(given_out)) == len(given_out), "a device was given twice"
    held_now = Counter(held)
    for grant in result.grants:
        own = by_run[grant.run_id]
        assert Counter(pool_of[p.device_id] for p in grant.placements) == wanted_of(own), "all of a gang or none"
        ranked = [p for p in grant.placements if p.use is DeviceUse.ENGINE]
        assert [p.rank for p in ranked] == [*range(own.engine_devices)] * own.engines
        hosts = [p.device_id.partition(".")[0] for p in ranked]
        groups = [hosts[at : at + own.engine_devices] for at in range(0, len(hosts), own.engine_devices)]
        assert all(len(set(group)) == 1 for group in groups), "an engine is on one host"
        for pool, count in wanted_of(own).items():
            allowed = known.bindings.get(pool)
            assert own.running or not allowed or own.project in allowed
            held_now[own.project, pool] += 0 if own.replaces else count
            assert own.replaces or held_now[own.project, pool] <= quotas.get((own.project, pool), 99)

    # Nobody is served while somebody ahead waits for the same pool for want of devices; only a project that was served
    # in this round lets others pass, since its share has grown.
    served = {grant.run_id for grant in result.grants}
    waits = {w.run_id: w.requirement.code for w in result.waiting}
    order = in_order(demands, known)
    for i, ahead in enumerate(order):
        if waits.get(ahead.run_id) in (Unmet.NOT_FREE, Unmet.SCATTERED, Unmet.BEHIND):
            grown = any(by_run[run].project == ahead.project for run in served)
            for later in order[i + 1 :]:
                assert grown or later.run_id not in served or not wanted_of(later).keys() & wanted_of(ahead).keys()

    again, mixed = list(demands), list(there)
    shuffle.shuffle(again)
    shuffle.shuffle(mixed)
    assert arbitrate(again, mixed, known) == result
    assert all(in_words(w.requirement) for w in result.waiting)


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_empties_as_devices_come_back(seed):
    """Every demand that can be met is met after finitely many returns, whatever the order of arrival."""
    rng = random.Random(seed)
    waiting = [demand(i, rng.randint(1, 2), rng.randint(0, 1), priority=rng.choice([10, 50])) for i in range(1, 12)]
    for _ in range(len(waiting)):
        result = arbitrate(waiting, FREE, rules())
        assert result.grants, said(result)
        done = {grant.run_id for grant in result.grants}
        waiting = [one for one in waiting if one.run_id not in done]
        if not waiting:
            break
    assert waiting == []


def test_a_device_whose_memory_is_leased_to_others_is_not_chosen() -> None:
    """CPU devices of a host share its memory; a grant of the round leases, too."""
    free = [FreeDevice(f"{node}.cpu{no}", node, "default", room=node) for node in ("a", "b") for no in range(2)]
    asked = {DeviceUse.ENGINE: 3, DeviceUse.TRAINER: 4}
    wanted = [replace(demand(run), memory=asked) for run in (1, 2)]
    found = arbitrate(wanted, free, rules({"default": 4}, memory={"a": 5, "b": 9}))
    (grant,) = found.grants
    assert {(one.device_id, one.use, one.memory) for one in grant.placements} == {
        ("a.cpu0", DeviceUse.ENGINE, 3), ("b.cpu0", DeviceUse.TRAINER, 4),
    }  # fmt: skip
    (waiting,) = found.waiting
    lack = waiting.requirement
    assert (lack.code, lack.wanted, lack.there) == (Unmet.MEMORY_LEASED, 4, 2)


def test_a_run_that_waits_for_memory_is_told_both_figures_and_is_not_overtaken() -> None:
    free = [FreeDevice(f"a.cpu{no}", "a", "default", room="a") for no in range(2)]
    large = replace(demand(1), memory={DeviceUse.ENGINE: 2**31, DeviceUse.TRAINER: 2**32})
    found = arbitrate([large, demand(2)], free, rules({"default": 2}, memory={"a": 2**32}))
    first, second = found.waiting
    assert in_words(first.requirement) == (
        "Needs 4.00 GiB of memory on a further device of default, and at most 2.00 GiB of a free one are not leased"
    )
    assert second.requirement.code is Unmet.BEHIND
    assert arbitrate([large], free, rules({"default": 2}, memory={"a": 2**31 + 2**32})).grants
    assert arbitrate([large], free, rules({"default": 2})).grants, "memory that nobody knows is enough"
