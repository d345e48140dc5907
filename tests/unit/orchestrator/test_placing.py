"""Engines that hold some policies only: places follow demand, nobody starves, and nothing moves to and fro."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.rules import broken_rules, warnings
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.orchestrator.serving.weight_sync import served
from tests.support.placed_core import PlacedCore, placed_spec
from tests.support.virtual.queues import Queues, Turn, drawn
from tests.unit.orchestrator.fake_cluster import make_spec, started
from tests.unit.orchestrator.test_relevance import same_with_short_ways

HOT, MILD, RARE = "planner", "solver", "verifier"


class Lanes:
    """A placed core whose engines answer when they are told to."""

    def __init__(self, engines, **options):
        self.orders = []
        self.placed = PlacedCore(placed_spec(engines, **options), lambda no, order: self.orders.append((no, order)))
        self.placed.start(1.0)

    def answer(self, now, kinds=("load_weights", "unload_policy")):
        """Let the engines do what they were told, oldest first."""
        while due := [one for one in self.orders if one[1].kind in kinds]:
            self.orders.remove(due[0])
            no, order = due[0]
            if isinstance(order, c.LoadWeights):
                self.placed.loaded(no, order, 0.2, now)
            else:
                self.placed.unloaded(no, order, 0.1, now)

    def told(self):
        return [(order.kind, order.lease_id, order.policy) for _, order in self.orders]


def context(placed):
    from flexmarl.orchestrator.context import Context

    return Context(placed.core.plan, placed.core.state, placed.core.state.now)


def test_engines_that_hold_all_policies_are_told_what_they_always_were():
    whole = started(make_spec(resources={"engine_policies": 2, "rollout_devices": 1}), seed=4).run()
    plain = started(make_spec(), seed=4).run()
    assert [d.commands for d in whole.decisions] == [d.commands for d in plain.decisions]
    assert not any(ruling.kind.startswith("engine_") for d in whole.decisions for ruling in d.rulings)


def test_every_policy_has_an_engine_where_there_is_room_and_a_run_needs_no_more_to_begin():
    lanes = Lanes(3)
    assert sorted(own for [own] in lanes.placed.serves().values()) == [HOT, MILD, RARE]
    assert not lanes.placed.playing
    lanes.answer(2.0)
    assert lanes.placed.playing
    assert {kind for kind, *_ in lanes.told()} == set(), "each engine loads what it serves and nothing else"


def test_a_policy_without_an_engine_is_loaded_when_it_is_asked_and_the_other_leaves_first():
    lanes = Lanes(2)
    lanes.answer(2.0)
    assert lanes.placed.playing, "who has no engine is waited for by nobody"
    [left_out] = {HOT, MILD, RARE} - {own for [own] in lanes.placed.serves().values()}
    stays, leaves = (own for [own] in lanes.placed.serves().values())
    lanes.placed.asked({stays: (0, 3), left_out: (2, 0)}, 3.0)
    assert [kind for kind, *_ in lanes.told()] == ["unload_policy"], "its place is not free yet"
    assert lanes.told()[0][2] == leaves
    lanes.answer(4.0, kinds=("unload_policy",))
    [(kind, lease, policy)] = lanes.told()
    assert (kind, lanes.placed.serves()[lease], policy) == ("load_weights", [left_out], left_out)
    lanes.answer(5.0)
    assert lanes.placed.moves() == ["waiting"]
    lanes.placed.replay()


def test_nobody_is_sent_away_while_all_are_asked_until_one_is_done():
    lanes = Lanes(2)
    lanes.answer(2.0)
    [left_out] = {HOT, MILD, RARE} - {own for [own] in lanes.placed.serves().values()}
    one, other = (own for [own] in lanes.placed.serves().values())
    lanes.placed.asked({one: (0, 3), other: (0, 1), left_out: (2, 0)}, 3.0)
    assert lanes.told() == []
    lanes.placed.asked({one: (0, 3), left_out: (2, 0)}, 4.0)
    assert [(kind, policy) for kind, _, policy in lanes.told()] == [("unload_policy", other)]
    assert not lanes.orders[0][1].hand_over, "nobody else holds it"


def test_a_worker_that_died_holds_no_place():
    lanes = Lanes(2)
    lanes.answer(2.0)
    [left_out] = {HOT, MILD, RARE} - {own for [own] in lanes.placed.serves().values()}
    one, other = (own for [own] in lanes.placed.serves().values())
    lanes.placed.asked({one: (0, 3), other: (0, 1)}, 3.0, worker="dead")
    lanes.placed.asked({one: (0, 1), left_out: (2, 0)}, 4.0)
    assert lanes.told() == []
    lanes.placed.asked({one: (0, 1), left_out: (2, 0)}, 30.0)
    assert [(kind, policy) for kind, _, policy in lanes.told()] == [("unload_policy", other)]


def test_what_a_killed_engine_served_is_given_away_anew():
    lanes = Lanes(4)
    lanes.answer(2.0)
    twice = next(name for name in (HOT, MILD, RARE) if sum(name in own for own in lanes.placed.serves().values()) == 2)
    lease, [lost] = next((lease, own) for lease, own in lanes.placed.serves().items() if own != [twice])
    lanes.placed.lost(lease, 3.0)
    assert lanes.placed.serves()[lease] == []
    [third] = {HOT, MILD, RARE} - {twice, lost}
    lanes.placed.asked({twice: (0, 9), third: (0, 1), lost: (1, 0)}, 4.0)
    assert [(kind, policy) for kind, _, policy in lanes.told()] == [("unload_policy", twice)]
    assert lanes.orders[0][1].hand_over, "what runs goes on at its other engine"
    lanes.answer(5.0)
    lanes.placed.ready(lease, 6.0)
    assert lanes.placed.serves()[lease] == [twice], "it comes back to a policy that has most to expect"
    lanes.answer(7.0)
    lanes.placed.replay()


def test_a_load_that_is_told_late_does_not_bring_back_what_was_forgotten():
    lanes = Lanes(2)
    lanes.answer(2.0)
    [left_out] = {HOT, MILD, RARE} - {own for [own] in lanes.placed.serves().values()}
    stays, leaves = (own for [own] in lanes.placed.serves().values())
    load = next(fact for fact, _ in lanes.placed.log if isinstance(fact, e.WeightsServed) and fact.policy == leaves)
    lanes.placed.asked({stays: (0, 3), left_out: (2, 0)}, 3.0)
    lanes.answer(4.0)
    lanes.placed.tell(load, 5.0)
    lanes.placed.asked({stays: (0, 3), leaves: (2, 0)}, 6.0)
    lanes.answer(7.0, kinds=("unload_policy",))
    lanes.placed.tell(load, 8.0)
    assert [(kind, policy) for kind, _, policy in lanes.told()] == [("load_weights", leaves)]
    assert lanes.placed.core.state.fleet.leases[load.lease_id].weights.held == {}


def test_the_barrier_asks_those_that_serve_a_policy_and_nobody_who_joins():
    lanes = Lanes(6)
    lanes.answer(2.0)
    ctx = context(lanes.placed)
    assert served(ctx)
    engines = [x for x in lanes.placed.core.state.fleet.leases.values() if HOT in x.weights.assigned]
    assert len(engines) == 2
    engines[0].weights.held.clear()
    assert served(ctx), "one that joins holds nobody up"
    engines[1].weights.held.clear()
    assert not served(ctx), "one at least"


def test_a_mover_without_anything_to_move_is_legal():
    document = placed_spec(3).model_dump(mode="json")
    for places in (None, 3, 7, 2):
        document["resources"]["engine_policies"] = places
        spec = ExperimentSpec.model_validate(document)
        assert broken_rules(spec) == warnings(spec) == []


SHARES = (0.8, 0.15, 0.05)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1 << 16),
    engines=st.integers(1, 6),
    places=st.integers(1, 2),
    mover=st.sampled_from(["static", "demand"]),
    drift=st.sampled_from([0, 40, 120]),
    kills=st.lists(st.tuples(st.floats(1.0, 60.0), st.integers(1, 6)), max_size=4),
)
def test_every_turn_is_answered_whatever_is_asked_and_whoever_dies(seed, engines, places, mover, drift, kills):
    spec = placed_spec(engines, places, mover)
    world = Queues(spec, drawn(tuple(spec.policies), SHARES, 300, seed, drift), users=12, slots=4)
    for at, which in kills:
        world.clock.after(at, lambda which=which: world.kill(1 + which % engines))
    world.run(seconds=3_000.0)
    assert len(world.answered) == 300
    world.core.replay()


@pytest.mark.parametrize("engines", [1, 2])
def test_a_policy_that_is_asked_rarely_waits_no_longer_than_the_others_need(engines):
    """Two policies are asked all the time, the third one now and then; no episode asks without end."""
    spec = placed_spec(engines, 1, "demand")
    dice = random.Random(1)
    turns = [Turn(dice.choice((HOT, MILD)), 0.5) if i % 20 else Turn(RARE, 0.5) for i in range(400)]
    world = Queues(spec, iter(turns), users=8, slots=4).run()
    waits = [at - turn.asked_at for at, turn in world.answered if turn.policy == RARE]
    assert len(waits) == 20
    assert max(waits) < 90.0


@pytest.mark.parametrize("engines", [8, 16])
def test_under_a_steady_load_moves_become_fewer_and_fewer(engines):
    spec = placed_spec(engines, 1, "demand")
    world = Queues(spec, drawn(tuple(spec.policies), SHARES, 1_000 * engines, 3), users=12 * engines).run()
    at = [
        now
        for (_, now), decision in zip(world.core.log, world.core.decisions, strict=True)
        for ruling in decision.rulings
        if ruling.kind == "engine_moved"
    ]
    begin, end = world.core.log[0][1], world.core.log[-1][1]
    first = sum(now < begin + 0.3 * (end - begin) for now in at)
    last = sum(now > begin + 0.7 * (end - begin) for now in at)
    assert last <= max(4, first), (first, last)
    assert len(at) <= 3 * engines


def test_moving_answers_more_than_standing_still_under_a_skewed_load():
    spans = {}
    for mover in ("static", "demand"):
        spec = placed_spec(8, 1, mover)
        world = Queues(spec, drawn(tuple(spec.policies), SHARES, 3_000, 5, 1_000), users=96).run()
        spans[mover] = max(at for at, _ in world.answered) - world.core.log[0][1]
        world.core.replay()
    assert spans["static"] > 1.3 * spans["demand"]
    assert world.handed_over, "what ran went on elsewhere"


def test_short_ways_change_no_decision_where_engines_have_places():
    spec = make_spec(resources={"rollout_devices": 2, "engine_policies": 1})
    same_with_short_ways(started(spec, seed=7).run())
