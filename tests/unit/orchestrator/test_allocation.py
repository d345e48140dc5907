"""Single decisions about trainer devices: who gets them, who makes room, and that it comes to rest."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.orchestrator.allocation import next_look, on_demand, spread_once
from flexmarl.orchestrator.standings import Bind, Snapshot, Standing, Suspend

IDLE = Standing(has_work=False, seconds=0.0, gang=(), still=True)
BUSY = Standing(has_work=True, seconds=1.0, gang=(), still=True, waiting_since=0.0)


def seen(policies, devices=2, places=1, **more):
    return Snapshot(now=100.0, policies=policies, devices=tuple(range(1, devices + 1)), places=places, **more)


def carried_out(state, changes):
    """Return the snapshot after everything that was decided has happened."""
    policies = dict(state.policies)
    for change in changes:
        own = policies[change.policy]
        if isinstance(change, Bind):
            assert not own.gang, f"{change.policy} is bound while it is on {own.gang}"
            own = replace(own, gang=change.gang, waiting_since=None, bound_at=state.now)
            own = replace(own, idle_since=None if own.has_work else state.now)
        else:
            assert own.gang, f"{change.policy} is suspended and nowhere"
            waits = state.now if own.has_work else None
            own = replace(own, gang=(), last=own.gang[0], idle_since=None, waiting_since=waits)
        policies[change.policy] = own
    after = replace(state, policies=policies)
    for device in state.devices:
        there = [name for name, own in policies.items() if device in own.gang]
        shared = [name for name in there if len(policies[name].gang) > 1]
        assert not shared or len(there) == 1, f"{device} is a gang's and has {there}"
        assert state.places is None or len(there) <= state.places, f"{device} has no place for {there}"
    return after


def test_who_waits_longest_is_bound_first_and_who_has_work_is_left_alone():
    policies = {
        "late": replace(BUSY, waiting_since=90.0),
        "early": replace(BUSY, waiting_since=80.0),
        "works": replace(BUSY, gang=(1,), waiting_since=None),
    }
    assert [(b.policy, b.gang) for b in on_demand(seen(policies))] == [("early", (2,))]


def test_a_drained_policy_makes_room_when_a_swap_has_paid_and_not_before():
    policies = {"a": replace(IDLE, gang=(1,), idle_since=99.0), "b": BUSY}
    early = seen(policies, devices=1, swap_s=2.0)
    assert on_demand(early) == []
    assert next_look(early) == 101.0
    [change] = on_demand(replace(early, swap_s=0.5))
    assert (change.policy, change.cause) == ("a", "drained")
    assert on_demand(replace(early, swap_s=0.5, keep_warm_s=5.0)) == []


def test_nobody_starves_behind_one_that_never_drains():
    policies = {
        "hog": replace(BUSY, gang=(1,), bound_at=0.0, waiting_since=None),
        "rare": replace(BUSY, waiting_since=95.0),
    }
    patient = seen(policies, devices=1, patience_s=10.0)
    assert on_demand(patient) == []
    assert next_look(patient) == 105.0
    [change] = on_demand(replace(patient, patience_s=5.0))
    assert (change.policy, change.cause) == ("hog", "patience")


def test_nothing_is_taken_from_a_policy_whose_step_is_on_its_way():
    policies = {"a": replace(IDLE, gang=(1,), idle_since=0.0, still=False), "b": BUSY}
    assert on_demand(seen(policies, devices=1)) == []


def test_a_gang_waits_until_it_has_all_its_devices_for_itself():
    policies = {
        "pair": replace(BUSY, least=2, most=2, waiting_since=1.0),
        "works": replace(BUSY, gang=(1,), waiting_since=None),
        "warm": replace(IDLE, gang=(2,), idle_since=0.0),
    }
    assert on_demand(seen(policies, places=None)) == [], "a part of a gang is of no use"
    policies["works"] = replace(IDLE, gang=(1,), idle_since=50.0)
    left = on_demand(seen(policies, places=None))
    assert {change.policy for change in left} == {"works", "warm"}
    [bound] = on_demand(carried_out(seen(policies, places=None), left))
    assert bound.gang == (1, 2)


def test_idle_devices_go_to_the_policy_with_most_work_when_that_pays():
    policies = {"hot": replace(BUSY, gang=(1,), waiting_since=None, seconds=4.0, most=4), "cold": replace(IDLE)}
    state = seen(policies, devices=4, swap_s=0.1)
    [change] = on_demand(state)
    assert (change.policy, change.cause) == ("hot", "grow")
    [bound] = on_demand(carried_out(state, [change]))
    assert bound.gang == (1, 2, 3, 4)
    assert on_demand(replace(state, swap_s=2.0)) == [], "less than a swap costs is not worth one"


def test_static_devices_are_those_chosen_and_never_change():
    policies = {"a": replace(BUSY, homes=(2,)), "b": replace(BUSY, homes=(2,)), "c": BUSY}
    state = seen(policies, places=None)
    bound = spread_once(state)
    assert {b.policy: b.gang for b in bound} == {"a": (2,), "b": (2,), "c": (1,)}
    assert spread_once(carried_out(state, bound)) == []


standings = st.builds(
    Standing,
    has_work=st.booleans(),
    seconds=st.floats(0, 50),
    gang=st.just(()),
    still=st.just(True),
    least=st.integers(1, 2),
    most=st.integers(2, 4),
    waiting_since=st.floats(0, 99),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(standings, min_size=1, max_size=6), st.integers(2, 5), st.sampled_from([None, 1, 2]), st.floats(0, 5))
def test_it_comes_to_rest_with_everybody_at_work_who_can_be(standing, devices, places, swap_s):
    policies = {
        f"p{i}": replace(s, waiting_since=s.waiting_since if s.has_work else None) for i, s in enumerate(standing)
    }
    state = seen(policies, devices=devices, places=places, swap_s=swap_s, patience_s=1e9)
    for _ in range(40):
        changes = on_demand(state)
        if not changes:
            break
        state = replace(carried_out(state, changes), now=state.now + 10 * swap_s + 1)
    else:
        raise AssertionError(f"it moves for ever: {changes}")
    waiting = [name for name, own in state.policies.items() if own.has_work and not own.gang]
    working = {device for own in state.policies.values() if own.has_work for device in own.gang}
    assert not waiting or len(working) > devices - min(state.policies[n].least for n in waiting), (
        "somebody waits for no reason"
    )


def test_it_is_the_same_decision_for_the_same_snapshot():
    policies = {f"p{i}": replace(BUSY, waiting_since=float(i % 2)) for i in range(4)}
    assert on_demand(seen(policies)) == on_demand(seen(dict(policies)))
    assert not any(isinstance(change, Suspend) for change in on_demand(seen(policies)))
