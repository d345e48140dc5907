"""Single decisions about trainer devices: who gets them, who makes room, and that it comes to rest."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flexmarl.orchestrator.allocation.allocator import next_look, on_demand, spread_once
from flexmarl.orchestrator.allocation.types import AllocationSnapshot, BindChange, PolicyNeeds, Suspend

IDLE = PolicyNeeds(has_work=False, seconds=0.0, gang=(), still=True)
BUSY = PolicyNeeds(has_work=True, seconds=1.0, gang=(), still=True, waiting_since=0.0)


def seen(policies, devices=2, places=1, **more):
    return AllocationSnapshot(now=100.0, policies=policies, devices=tuple(range(1, devices + 1)), places=places, **more)


def carried_out(state, changes):
    """Return the snapshot after everything that was decided has happened."""
    policies = dict(state.policies)
    for change in changes:
        own = policies[change.policy]
        if isinstance(change, BindChange):
            assert not own.gang, f"{change.policy} is bound while it is on {own.gang}"
            own = replace(own, gang=change.gang, waiting_since=None, bound_at=state.now, meant=())
            own = replace(own, idle_since=None if own.has_work else state.now)
        else:
            assert own.gang, f"{change.policy} is suspended and nowhere"
            waits = state.now if own.has_work else None
            own = replace(own, gang=(), last=own.gang[0], idle_since=None, waiting_since=waits, meant=change.meant)
        policies[change.policy] = own
    return alone_where_it_must_be(replace(state, policies=policies))


def alone_where_it_must_be(after):
    """Return a snapshot in which no gang shares a device, and no device holds more than it has places."""
    policies, state = after.policies, after
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


def test_a_gang_has_no_device_more_than_its_rows_can_use():
    four_rows = replace(BUSY, seconds=8.0, rows=4, most=8)
    [bound] = on_demand(seen({"a": four_rows}, devices=7, places=None))
    assert len(bound.gang) == 4, "a rank more, and some have two rows as before"
    [bound] = on_demand(seen({"a": replace(four_rows, rows=24)}, devices=7, places=None))
    assert len(bound.gang) == 6, "on seven, one rank has four rows as well"


def test_work_is_shared_out_by_its_length():
    longest = replace(BUSY, seconds=11.0)
    policies = {"x": BUSY, "y": BUSY, "z": BUSY, "longest": longest}
    bound = {b.policy: b.gang for b in on_demand(seen(policies, places=None))}
    assert [name for name, gang in bound.items() if gang == bound["longest"]] == ["longest"], bound


def test_all_devices_are_shared_out_anew_when_the_last_one_would_be_done_much_earlier():
    hot = replace(BUSY, gang=(1,), waiting_since=None, seconds=24.0, rows=24, most=8)
    cold = replace(BUSY, waiting_since=None, seconds=4.0, rows=4, most=8)
    policies = {"hot": hot, "beside": replace(cold, gang=(1,)), "wide": replace(cold, gang=(2, 3, 4, 5, 6, 7))}
    state = seen(policies, devices=8, places=None, swap_s=0.1)
    changes = on_demand(state)
    assert {c.policy for c in changes} >= {"hot", "wide"}
    gangs = {c.policy: c.meant for c in changes}
    assert len(gangs["hot"]) >= 4
    after = carried_out(state, changes)
    after = carried_out(after, on_demand(after))
    assert {n: own.gang for n, own in after.policies.items() if n in gangs} == gangs, "each has what was meant for it"
    assert on_demand(after) == []


def test_what_is_meant_for_one_is_not_given_to_another():
    policies = {
        "moves": replace(BUSY, meant=(1, 2), most=2, waiting_since=99.0),
        "leaves": replace(BUSY, gang=(2,), leaving=True, still=False, waiting_since=None),
        "early": replace(BUSY, waiting_since=1.0),
    }
    state = seen(policies, devices=2)
    assert on_demand(state) == [], "device 1 is free, and comes with device 2 to the one that was suspended for both"
    policies["leaves"] = replace(policies["leaves"], leaving=False, still=True)
    assert [b.policy for b in on_demand(seen(policies))] == ["early"], "who does not leave keeps it"
    lost = replace(policies["moves"], meant=(1, 7))
    assert [b.policy for b in on_demand(seen({"moves": lost}))] == ["moves"], "device 7 is lost"


def test_a_gang_too_wide_for_its_rows_makes_room_and_one_that_uses_all_does_not():
    wide = replace(BUSY, gang=(1, 2), waiting_since=None, seconds=8.0, rows=1, most=2)
    policies = {"wide": wide, "waits": replace(BUSY, waiting_since=99.0)}
    state = seen(policies, swap_s=0.1)
    assert [(c.policy, c.cause) for c in on_demand(state)] == [("wide", "wide")]
    assert on_demand(seen({**policies, "wide": replace(wide, rows=2)}, swap_s=0.1)) == []
    assert on_demand(seen({**policies, "wide": replace(wide, seconds=0.1)}, swap_s=0.1)) == [], "it is done soon"


def test_one_move_serves_for_two_when_another_is_done_soon():
    hot = replace(BUSY, gang=(1,), waiting_since=None, seconds=24.0, most=4)
    policies = {"hot": hot, "soon": replace(BUSY, gang=(2,), waiting_since=None, seconds=0.1, more=False)}
    state = seen(policies, devices=3, swap_s=0.2)
    assert on_demand(state) == []
    policies["soon"] = replace(policies["soon"], more=True)
    assert on_demand(seen(policies, devices=3, swap_s=0.2)), "who may get more work is waited for by nobody"


def test_who_gets_no_more_work_is_not_kept_warm():
    policies = {"a": replace(IDLE, gang=(1,), idle_since=100.0, more=False), "b": BUSY}
    assert [c.cause for c in on_demand(seen(policies, devices=1, swap_s=5.0))] == ["drained"]
    assert on_demand(seen(policies, devices=1, keep_warm_s=5.0)) == [], "somebody chose how long"


def test_static_gangs_are_bound_before_those_that_could_share():
    policies = {"x": BUSY, "y": BUSY, "z": BUSY, "pair": replace(BUSY, least=2, most=2)}
    bound = {b.policy: b.gang for b in spread_once(seen(policies, devices=3, places=None))}
    assert set(bound) == set(policies), "single ones took the devices that the pair needs"
    assert not set(bound["pair"]) & {device for name in "xyz" for device in bound[name]}


def test_static_devices_that_are_named_are_not_given_to_a_larger_gang():
    policies = {"pair": replace(BUSY, least=2, most=2), "named": replace(BUSY, homes=(1,))}
    bound = {b.policy: b.gang for b in spread_once(seen(policies, devices=3, places=1))}
    assert bound == {"named": (1,), "pair": (2, 3)}


def test_static_devices_are_those_chosen_and_never_change():
    policies = {"a": replace(BUSY, homes=(2,)), "b": replace(BUSY, homes=(2,)), "c": BUSY}
    state = seen(policies, places=None)
    bound = spread_once(state)
    assert {b.policy: b.gang for b in bound} == {"a": (2,), "b": (2,), "c": (1,)}
    assert spread_once(carried_out(state, bound)) == []


standings = st.builds(
    PolicyNeeds,
    has_work=st.booleans(),
    seconds=st.floats(0, 50),
    gang=st.just(()),
    still=st.just(True),
    least=st.integers(1, 2),
    most=st.integers(2, 4),
    rows=st.integers(0, 5),
    more=st.booleans(),
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


@settings(max_examples=200, deadline=None)
@given(st.lists(standings, min_size=1, max_size=6), st.integers(2, 5), st.sampled_from([None, 1, 2]), st.data())
def test_whatever_order_they_leave_in_all_work_is_done_and_no_gang_is_shared(standing, devices, places, data):
    policies = {f"p{i}": replace(s, has_work=True, seconds=s.seconds + 0.1) for i, s in enumerate(standing)}
    state = seen(policies, devices=devices, places=places, swap_s=0.2, patience_s=3.0)
    for _ in range(400):
        for change in on_demand(state):
            own = state.policies[change.policy]
            if isinstance(change, BindChange):
                state = carried_out(state, [change])
            else:
                own = replace(own, leaving=True, still=False, meant=change.meant)
                state = replace(state, policies={**state.policies, change.policy: own})
        if not any(own.has_work for own in state.policies.values()):
            break
        state = alone_where_it_must_be(later(state, data))
    else:
        raise AssertionError(f"somebody is never done: {state}")


def later(state, data):
    """Return the snapshot a second later: one that leaves is gone, or all who work did some of it."""
    policies, now = dict(state.policies), state.now + 1.0
    leaving = [name for name, own in policies.items() if own.leaving]
    if leaving:
        name = data.draw(st.sampled_from(leaving))
        own, waits = policies[name], now if policies[name].has_work else None
        policies[name] = replace(own, gang=(), leaving=False, still=True, waiting_since=waits, idle_since=None)
        return replace(state, policies=policies, now=now)
    for name, own in policies.items():
        if own.gang and own.has_work:
            there = sum(1 for other in policies.values() if other.has_work and other.gang[:1] == own.gang[:1])
            left = max(0.0, own.seconds - max(1.0, own.seconds / 4) / there)
            done = {"has_work": False, "idle_since": now} if not left else {}
            policies[name] = replace(own, seconds=left, worked=True, **done)
    return replace(state, policies=policies, now=now)


def test_it_is_the_same_decision_for_the_same_snapshot():
    policies = {f"p{i}": replace(BUSY, waiting_since=float(i % 2)) for i in range(4)}
    assert on_demand(seen(policies)) == on_demand(seen(dict(policies)))
    assert not any(isinstance(change, Suspend) for change in on_demand(seen(policies)))
