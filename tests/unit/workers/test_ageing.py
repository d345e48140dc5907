"""Episodes are given up between two turns once none of their rows can be trained: what they had goes at once."""

import asyncio
from uuid import uuid4

import pytest

from flexmarl.contracts.commands import GroupOrder, PlayGroups
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import EpisodeStatus, Origin, PolicyPin
from flexmarl.store.control.commands import Taken
from workers.external_access import ExternalAccess
from workers.models import tokenizer_json
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.environments.registry import family_of
from workers.rollout.external import ExternalClient
from workers.rollout.members import begin, play_each, play_group
from workers.rollout.run_context import RunContext
from workers.rollout.slots import slots
from workers.rollout.stages import stage_of
from workers.rollout.turns import TurnReply
from workers.vocabulary import Codec

PIN = PolicyPin(version=3, digest="a" * 64)
GIVING_UP = {"bound": 1, "at_cut": "drop", "at_turn": "abandon", "in_flight": "resume"}
POLICIES = ("guesser", "hinter")
SOLVED = 12
"""Guesses of an episode at most, each followed by a hint."""


class Engines:
    """Answers every turn by the newest weights that an episode's turns are let see.

    `now` is what engines have; it goes up by itself after so many turns of one member.
    """

    def __init__(self, now=3, goes_up_after=()):
        self.now, self.goes_up_after = dict.fromkeys(POLICIES, now), set(goes_up_after)
        self.asked = []
        self.looks = 0

    async def until_held(self, request, limit_s):
        return 0.0

    async def newest(self):
        self.looks += 1
        return self.now

    async def turn(self, request, deadline):
        self.asked.append((request.where.member, request.where.attempt, request.role))
        version = self.now[request.policy] if request.follow else request.pin.version
        await asyncio.sleep(0)
        if len(self.asked) in self.goes_up_after:
            self.now = {name: own + 2 for name, own in self.now.items()}
        ids = [request.allowed[0]] if request.allowed else [3]  # the same guess again: no episode finds its secret soon
        return TurnReply(CompletionChoice(0, ids, [-1.0], "length", [version, 1]), "one", 1.0)


def playing_of(engines, members=1, *, lag=GIVING_UP, origin=Origin.TRAIN, batch=None, follows=POLICIES, **parallel):
    spec = resolve(
        {
            "agents": {"guesser": {}, "hinter": {}},
            "environment": {"type": "hot_cold", "guesses": SOLVED},
            "algorithm": {"loss": {"type": "ppo_clip"}},
            "batch": batch or {},
            "mechanisms": {"lag_policy": lag, "parallel": parallel},
        }
    ).spec
    codec = Codec(tokenizer_json(family_of(spec.environment).vocabulary()))
    context = RunContext(
        1, spec, stage_of(spec.environment), dict.fromkeys(POLICIES, codec), engines, ExternalClient(ExternalAccess()),
        slots(spec.mechanisms.parallel.episodes),
    )  # fmt: skip
    order = PlayGroups(
        pool="p", epoch=1, origin=origin, groups=(GroupOrder(draw=1, task_seed=5, members=members),),
        pins=dict.fromkeys(POLICIES, PIN), sampling_seed=7, follows=dict.fromkeys(follows, "resume"),
    )  # fmt: skip
    return begin(Taken(1, 1, uuid4(), 1, 1, order), order, context)


async def played(playing):
    return await asyncio.wait_for(play_group(playing, playing.order.groups[0]), 60)


async def test_an_episode_whose_first_turns_are_too_old_is_not_asked_for_another():
    engines = Engines(goes_up_after={4})
    settled = await played(playing_of(engines))
    [outcome] = settled.event.episodes
    assert outcome.abandoned
    assert outcome.status is EpisodeStatus.CANCELLED
    assert outcome.reason == ("rollout: too_old: guesser v3 said its first turn, v5 is served: the bound is 1")
    assert len(engines.asked) == 4, "two guesses and their hints; the next one would have been in vain"
    assert outcome.wasted == 4
    assert outcome.samples == ()
    assert settled.samples == [], "what nobody can train is recorded as a transcript alone"
    assert settled.episodes[0].tokens == 4


async def test_it_is_not_tried_again_and_its_place_is_free_at_once():
    engines = Engines(goes_up_after={4})
    settled = await played(playing_of(engines, members=3, batch={"max_attempts": 3}, episodes=1))
    assert [outcome.attempt for outcome in settled.event.episodes] == [1, 1, 1]
    first = [asked for asked in engines.asked if asked[0] == 0]
    assert len(first) == 4
    # The members behind it begin under newer weights, and nothing of the group is too old for them.
    assert [outcome.status for outcome in settled.event.episodes] == ["cancelled", "finished", "finished"]


async def test_a_group_is_as_old_as_its_oldest_member_that_finished():
    """The first member finishes; then weights go on, and whoever plays on would be removed with it."""
    alone = Engines()
    await played(playing_of(alone))
    length = len(alone.asked)
    engines = Engines(goes_up_after={length + 2})
    settled = await played(playing_of(engines, members=3, episodes=1))
    assert [outcome.status for outcome in settled.event.episodes] == ["finished", "cancelled", "cancelled"]
    assert not [asked for asked in engines.asked if asked[0] == 2], "the first member's rows are too old without it"


async def test_where_episodes_settle_one_by_one_each_is_as_old_as_itself():
    alone = Engines()
    await played(playing_of(alone))
    engines = Engines(goes_up_after={len(alone.asked) + 2})
    playing, settled = playing_of(engines, members=3, episodes=1), asyncio.Queue()
    await asyncio.wait_for(play_each(playing, playing.order.groups[0], [0, 1, 2], settled), 60)
    found = [settled.get_nowait().event.episodes[0].status for _ in range(3)]
    assert found == ["finished", "cancelled", "finished"]


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("weights within the bound", {"lag": GIVING_UP | {"bound": 2}}),
        ("a run that plays on", {"lag": GIVING_UP | {"at_turn": "play"}}),
        ("an evaluation", {"origin": Origin.EVAL}),
    ],
)
async def test_nobody_else_is_given_up(case, changes):
    engines = Engines(goes_up_after={4})
    settled = await played(playing_of(engines, **changes))
    assert [outcome.status for outcome in settled.event.episodes] == ["finished"], case
    assert bool(engines.looks) is (case == "weights within the bound"), "nobody else looks at the engines for it"


async def test_exact_weights_grow_old_as_well():
    """Where replies do not follow an update, every turn is of the pinned version."""
    engines = Engines(goes_up_after={1})
    settled = await played(playing_of(engines, lag=GIVING_UP | {"in_flight": "finish"}, follows=()))
    assert settled.event.episodes[0].abandoned
