"""Groups whose members continue others: what is recorded, when they play, and that a try is repeated as it was."""

from dataclasses import replace
from typing import Any

import pytest

from flexmarl.contracts.commands import GroupOrder
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.store.data.groups import SettledGroup
from tests.conformance.branching_team import Team, playing_of
from workers.rollout.members import play_group

pytestmark = pytest.mark.slow

MEMBERS, ROOTS = 8, 4
ROLES = ("guesser", "hinter")
GAME = {"type": "hot_cold", "numbers": 8, "symbols": 4, "guesses": 6}
WEIGHTS = (0.0, 1.0, 0.4, 0.3, 0.0)


def spec_of(controller: Any = "trace", game: Any = None, roles: tuple[str, ...] = ROLES, **changes: Any) -> Any:
    document = {
        "agents": {role: {} for role in roles},
        "environment": game or GAME,
        "sampling": {"branch_controller": controller},
        "batch": {"episodes_per_task": MEMBERS},
    }
    return resolve(document | changes).spec


async def settled(spec: Any, draw: int, team: Team | None = None, weights: Any = (), **asked: Any) -> SettledGroup:
    playing = playing_of(spec, team or Team(), **asked)
    playing = replace(playing, order=playing.order.model_copy(update={"predictor": weights}))
    return await play_group(playing, GroupOrder(draw=draw, task_seed=draw, members=MEMBERS))


def said(group: SettledGroup, member: int) -> list[tuple[str, int, list[int], list[int]]]:
    return [(row.role, row.turn, row.prompt, row.response) for row in group.samples if row.member == member]


async def test_members_go_on_from_turns_of_others_and_their_rows_are_what_they_said_themselves():
    for draw in range(8):
        group = await settled(spec_of(), draw)
        outcomes = group.event.episodes
        assert [one.member for one in outcomes] == list(range(MEMBERS))
        assert {one.status for one in outcomes} == {EpisodeStatus.FINISHED}
        continued = [one for one in outcomes if one.branch is not None and one.branch.root >= 0]
        assert all(one.branch is not None and one.branch.prefixes for one in outcomes[:ROOTS] if len(one.samples) > 1)
        for one in continued:
            assert one.member >= ROOTS > one.branch.root
            whole, own = said(group, one.branch.root), said(group, one.member)
            role, turn, prompt, _ = whole[one.branch.turns]
            assert own[0][:3] == (role, turn, prompt), "it was asked what its root was asked there"
            assert len(own) == len(one.samples)
            turns = [sum(row[0] == who for row in whole[: one.branch.turns]) for who in ROLES]
            numbers = {who: [row[1] for row in own if row[0] == who] for who in ROLES}
            for who, before in zip(ROLES, turns, strict=True):
                assert numbers[who] == list(range(before, before + len(numbers[who])))
            guesses = turns[0] + len(numbers["guesser"])
            assert one.facts["guesses"] == guesses, "its outcome is that of the whole episode"
        entries = {one.member: one.transcript[0] for one in group.episodes}
        assert all("goes on from member" in entries[one.member][2] for one in continued)
        assert all(len(entries[member]) == 2 for member in range(ROOTS))


async def test_nobody_goes_on_before_all_first_episodes_have_ended():
    class Watching(Team):
        def __init__(self) -> None:
            super().__init__()
            self.members: list[int] = []

        async def turn(self, request: Any, deadline: float) -> Any:
            self.members.append(request.where.member)
            return await super().turn(request, deadline)

    team = Watching()
    await settled(spec_of(), 2, team)
    first = min(place for place, member in enumerate(team.members) if member >= ROOTS)
    assert all(member >= ROOTS for member in team.members[first:])


async def test_the_choice_and_all_that_is_said_follow_from_the_seed_and_the_predictor():
    found = [await settled(spec_of(), 5, weights=WEIGHTS) for _ in range(2)]
    assert [one.branch for one in found[0].event.episodes] == [one.branch for one in found[1].event.episodes]
    first, again = ([said(group, n) for n in range(MEMBERS)] for group in found)
    assert first == again
    cold = await settled(spec_of(), 5)
    told = {one.branch.predicted for one in cold.event.episodes if one.branch and one.branch.root >= 0}
    assert told == {0.5}, "nothing is known yet"
    warm = {one.branch.predicted for one in found[0].event.episodes if one.branch and one.branch.root >= 0}
    assert warm != {0.5}


async def test_with_share_0_and_in_evaluations_every_member_plays_its_own_episode():
    plain = await settled(spec_of("none"), 3)
    for spec, origin in ((spec_of({"type": "trace", "share": 0}), Origin.TRAIN), (spec_of(), Origin.EVAL)):
        group = await settled(spec, 3, origin=origin)
        assert [one.branch for one in group.event.episodes] == [None] * MEMBERS
        if origin is Origin.TRAIN:
            assert [said(group, n) for n in range(MEMBERS)] == [said(plain, n) for n in range(MEMBERS)]
            assert [one.scores for one in group.event.episodes] == [one.scores for one in plain.event.episodes]


async def test_first_episodes_are_those_of_a_plain_group():
    plain, group = await settled(spec_of("none"), 4), await settled(spec_of(), 4)
    assert [said(group, n) for n in range(ROOTS)] == [said(plain, n) for n in range(ROOTS)]


async def test_where_less_can_be_continued_the_rest_play_their_own_episodes():
    game = {"type": "reference_game", "attributes": 1, "values": 2, "symbols": 2, "message_length": 1}
    spec = spec_of({"type": "trace", "share": 0.7, "most_per_prefix": 1}, game, ("speaker", "listener"))
    group = await settled(spec, 1)
    continued = [one.branch.root for one in group.event.episodes if one.branch is not None and one.branch.root >= 0]
    assert sorted(continued) == [0, 1, 2], "three first episodes of two turns have one prefix each"
    assert {len(said(group, n)) for n in (6, 7)} == {2}
    assert [one.branch for one in group.event.episodes[6:]] == [None, None]


async def test_a_member_that_is_tried_again_goes_on_from_the_same_turn():
    class Broken(Team):
        failed = False

        async def turn(self, request: Any, deadline: float) -> Any:
            if request.where.member == ROOTS and not self.failed and self.asked_later:
                self.failed = True
                raise RuntimeError("no")
            self.asked_later = request.where.member == ROOTS
            return await super().turn(request, deadline)

        asked_later = False

    game = {**GAME, "guesses": 8}
    whole, again = await settled(spec_of(game=game), 6), await settled(spec_of(game=game), 6, Broken())
    assert again.event.episodes[ROOTS].attempt == 2
    assert again.event.episodes[ROOTS].branch == whole.event.episodes[ROOTS].branch
    assert again.event.episodes[ROOTS].wasted > 0
    assert [said(again, n) for n in range(MEMBERS)] == [said(whole, n) for n in range(MEMBERS)]


async def test_turns_that_are_asked_at_once_are_continued_together():
    cooks = ("cook_1", "cook_2")
    group = await settled(spec_of(game={"type": "kitchen"}, roles=cooks), 2)
    for one in group.event.episodes:
        assert one.branch is not None
        ends = [prefix.turns for prefix in one.branch.prefixes] or [one.branch.turns]
        assert all(end % len(cooks) == 0 for end in ends)
        assert {sample.role for sample in one.samples} == set(cooks)


async def test_a_first_episode_that_was_tried_again_is_continued_as_it_went_the_second_time():
    class Changing(Team):
        async def turn(self, request: Any, deadline: float) -> Any:
            where = request.where
            if where.attempt == 1 and where.member < ROOTS and (request.role, where.turn) == ("hinter", 1):
                raise RuntimeError("no")
            return await super().turn(replace(request, seed=request.seed + where.attempt), deadline)

    group = await settled(spec_of(game={**GAME, "guesses": 8}), 6, Changing())
    outcomes = group.event.episodes
    continued = [one for one in outcomes if one.branch is not None and one.branch.root >= 0]
    assert any(outcomes[one.branch.root].attempt == 2 for one in continued if one.branch is not None)
    for one in continued:
        assert one.branch is not None
        assert said(group, one.member)[0][:3] == said(group, one.branch.root)[one.branch.turns][:3]
