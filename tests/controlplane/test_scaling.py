"""How many further hosts of a pool are asked for: what the arbiter would grant with them."""

from typing import Any

from flexmarl.controlplane.runs.pool_look import PoolLook
from flexmarl.controlplane.runs.providing.scaling import HostShape, hosts_wanted
from flexmarl.orchestrator.pool.types import DeviceDemand, FreeDevice, Rules
from flexmarl.store.control.pool_rules import PoolRules

SHAPE = HostShape("batch", "cpu", 2, whole=True)


def demand(run_id: int, engines: int = 1, trainers: int = 1, **more: Any) -> DeviceDemand:
    return DeviceDemand(run_id, 1, "batch", engines, "", trainers, since=float(run_id), **more)


def wanted(*demands: DeviceDemand, most: int = 9, free: tuple[FreeDevice, ...] = (), **rules: Any) -> int:
    there = Rules({"batch": len(free)} if free else {}, **rules)
    return hosts_wanted(PoolLook(demands, free, there, PoolRules({}, [], {})), SHAPE, most)


def test_no_host_is_wanted_while_nobody_waits_or_what_is_free_will_do() -> None:
    free = tuple(FreeDevice(f"a.cpu{n}", "a", "batch", kind="cpu") for n in range(2))
    assert wanted() == 0
    assert wanted(demand(1), free=free) == 0
    assert wanted(DeviceDemand(1, 1, "other", 1, "", 1)) == 0


def test_as_few_hosts_are_wanted_as_serve_all_who_can_be_served() -> None:
    assert wanted(demand(1)) == 1
    assert wanted(demand(1, 2, 1)) == 2
    assert wanted(demand(1), demand(2), demand(3)) == 3
    assert wanted(*(demand(n) for n in range(1, 30)), most=4) == 4


def test_a_gang_that_the_most_hosts_cannot_hold_wants_none() -> None:
    assert wanted(demand(1, 4, 1), most=2) == 0
    assert wanted(demand(1, 4, 1), demand(2), most=2) == 1, "and keeps nobody else from being served"


def test_a_quota_and_a_closed_pool_want_none() -> None:
    quotas, held = {("default", "batch"): 2}, {("default", "batch"): 2}
    assert wanted(demand(1), quotas=quotas, held=held) == 0
    assert wanted(demand(1), bindings={"batch": {"elsewhere"}}) == 0


def test_engines_of_several_devices_want_hosts_that_hold_each_whole() -> None:
    assert wanted(demand(1, 1, 0, engine_devices=2)) == 1
    assert wanted(demand(1, 2, 1, engine_devices=2)) == 3
    assert wanted(demand(1, 1, 0, engine_devices=3)) == 0, "no host of this shape holds one"
