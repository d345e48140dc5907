"""Engines that serve one version at a time: who plays what, under which weights, whatever is lost meanwhile."""

import random
from types import SimpleNamespace

import pytest

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.status import TERMINAL, RunReason, RunStatus
from flexmarl.orchestrator.rollout.one_version import _adopt
from flexmarl.orchestrator.rollout.repacking import SEEN_S
from flexmarl.orchestrator.state.cohort import Pin
from flexmarl.orchestrator.state.fleet import ChildLives, LeaseState
from tests.unit.orchestrator.fake_cluster import make_spec, started
from tests.unit.orchestrator.test_any_mix import any_faults, settle_facts

REPACK = {"type": "repack", "below": 40, "every_s": 1.0}


def one_version(mover="static", engines=3, bound=2, **more):
    spec = make_spec(
        resources={"rollout_devices": engines, "engine_versions": 1},
        mechanisms__lag_policy__bound=bound,
        mechanisms__mover=mover,
        **more,
    )
    assert not broken_rules(spec)
    return spec


def report(cluster):
    """Tell the core that each engine has a little to do, as a worker would a while later."""
    rng = cluster.rng
    engines = {lease: rng.randint(0, 9) for lease, use in cluster.uses.items() if use is e.DeviceUse.ENGINE}
    told = {
        "engines": engines,
        "queued": {lease: 1 for lease in engines if rng.random() < 0.2},
        "cache": {lease: rng.randint(0, 900) for lease in engines},
    }
    cluster.now += rng.random() * 3.0
    cluster.tell(e.DemandReported(worker="w", policies={"speaker": e.RequestedTurns(waiting=0, in_flight=9)}, **told))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_every_row_is_counted_and_no_group_is_left(seed):
    rng = random.Random(seed)
    spec = one_version(
        rng.choice(["static", REPACK, REPACK]),
        engines=rng.randint(1, 4),
        bound=rng.choice([1, 2, 4]),
        mechanisms__lag_policy__at_admission=rng.choice(["admit", "wait", "trained"]),
        mechanisms__lag_policy__at_cut=rng.choice(["wait", "drop", "refresh"]),
        batch__rollout_groups=rng.choice([1, 2]),
        sampling__group_filter=rng.choice(["none", "dynamic_sampling"]),
    )
    cluster = started(spec, seed=seed, faults=any_faults(rng), round_trip=seed % 4 == 0)
    for _ in range(4000):
        if cluster.status in TERMINAL:
            break
        cluster.happen()
        if rng.random() < 0.15 and cluster.status not in TERMINAL:
            report(cluster)
        if rng.random() < 0.005 and cluster.status not in TERMINAL:
            cluster.tell(
                e.RunVerb(verb=e.Verb.PAUSE, mode=rng.choice(list(e.PauseMode)), hold_s=rng.choice([None, 0.0]))
            )
        if cluster.status is RunStatus.PAUSED:
            cluster.verb(e.Verb.RESUME)
    settle_facts(cluster)
    state, episodes = cluster.core.state, cluster.core.state.totals.train_episodes
    assert state.lifecycle.status in TERMINAL, state.lifecycle.reason_text
    assert episodes.proposed == episodes.finished + episodes.failed + episodes.cancelled
    assert state.totals.samples_trained == len(cluster.trained)
    if state.lifecycle.status is RunStatus.COMPLETED and state.lifecycle.reason is RunReason.BUDGET_STEPS:
        assert state.step == 4


def engines(cluster):
    return {lease: x for lease, x in cluster.children.items() if cluster.uses[lease] is e.DeviceUse.ENGINE}


def test_an_engine_holds_one_version_and_others_hold_others_meanwhile():
    cluster = started(one_version(engines=3, bound=4, budget__train_steps=8), seed=5)
    together = set()
    while cluster.status not in TERMINAL:
        cluster.happen()
        for child in engines(cluster).values():
            assert all(len(versions) == 1 for versions in child.holds.values()), child.holds
        for policy in cluster.spec.policies:
            together.add(len({tuple(x.holds.get(policy, ())) for x in engines(cluster).values()} - {()}))
    assert max(together) >= 2, "each engine takes newer weights at its own time"
    assert cluster.core.state.step == 8


def test_groups_are_given_to_an_engine_that_holds_the_newest_weights():
    cluster = started(one_version(engines=2, bound=4, budget__train_steps=6), seed=2)
    asked, seen = set(), 0
    while cluster.status not in TERMINAL:
        cluster.happen()
        orders = [x.command for decision in cluster.decisions[seen:] for x in decision.commands]
        seen = len(cluster.decisions)
        for order in (x for x in orders if isinstance(x, c.PlayGroups) and x.origin == "train"):
            state = cluster.core.state
            pins = {name: pin.version for name, pin in order.pins.items()}
            assert pins == state.fleet.leases[order.engine].weights.held
            assert pins == {name: policy.version for name, policy in state.policies.items()}, "pinned when it is given"
            asked.add(order.engine)
    assert asked == {lease for lease, use in cluster.uses.items() if use is e.DeviceUse.ENGINE}


def test_what_is_left_goes_on_at_an_engine_of_the_same_version_and_the_other_takes_the_newest():
    cluster = started(one_version(REPACK, engines=3, bound=4, budget__train_steps=8), seed=4)
    moved = between_turns = 0
    while cluster.status not in TERMINAL:
        held = {lease.lease_id: dict(lease.weights.held) for lease in cluster.core.state.fleet.leases.values()}
        cluster.happen()
        if cluster.rng.random() < 0.2 and cluster.status not in TERMINAL:
            state = cluster.core.state
            held = {lease.lease_id: dict(lease.weights.held) for lease in state.fleet.leases.values()}
            given = {lease.lease_id: lease.assigned.given_at for lease in state.fleet.leases.values()}
            waits = any(draw not in cohort.older for cohort in state.cohorts for draw in cohort.open)
            report(cluster)
            for order in (x.command for x in cluster.decisions[-1].commands):
                if isinstance(order, c.UnloadPolicy) and order.hand_over:
                    moved += 1
                    between_turns += not state.fleet.demand.depth(order.lease_id)
                    assert held[order.lease_id] == held[order.to], "versions are not mixed"
                    assert waits, "whoever is free then has something to do"
                    assert state.fleet.demand.oldest_report(state.fleet.repacked.at) >= SEEN_S + max(
                        given[order.lease_id], given[order.to]
                    )
                    lease = cluster.core.state.fleet.leases[order.lease_id]
                    assert not lease.assigned.draws
                    assert order.policy not in lease.weights.held
    assert moved, "nothing was repacked"
    assert between_turns, "groups whose episodes ask nothing for the moment are emptied too"
    assert cluster.core.state.step == 8


PART = 3


@pytest.mark.parametrize(
    ("engines", "taken_by"),
    [
        ([(1, 0), (2, 0), (1, 2)], 2),
        ([(1, 2), (1, 1), (1, 0)], 1),
        ([(1, PART), (2, 0), (1, 0)], 2),
        ([(1, PART), (2, 2), (2, 0)], 2),
        ([(1, PART + 1), (2, 1), (1, PART)], 2),
        ([(2, 1), (2, 2)], None),
    ],
    ids=[
        "beside_its_like",
        "where_the_fewest_play",
        "one_that_holds_them",
        "one_that_loads_them",
        "over_its_part",
        "waits",
    ],
)
def test_who_goes_on_with_groups_whose_engine_is_gone(engines, taken_by):
    """`engines`: the version that each holds, and how many draws it plays of it. The draw was given under version 1."""
    given, working = {1000: {"p": Pin(1, "d1")}}, []
    for lease_id, (version, plays) in enumerate(engines):
        draws = list(range(100 * lease_id, 100 * lease_id + plays))
        given |= {draw: {"p": Pin(version, f"d{version}")} for draw in draws}
        lease = LeaseState(lease_id, f"gpu{lease_id}", e.DeviceUse.ENGINE, ChildLives("e1"))
        lease.weights.held, lease.assigned.draws = {"p": version}, draws
        working.append(lease)
    engines = SimpleNamespace(groups_at_once=PART, least=4, most=4)
    _adopt(SimpleNamespace(plan=SimpleNamespace(engines=engines), now=7.0), working, given)
    assert [lease.lease_id for lease in working if 1000 in lease.assigned.draws] == (
        [] if taken_by is None else [taken_by]
    )
    assert [lease.lease_id for lease in working if lease.assigned.given_at] == ([] if taken_by is None else [taken_by])
