"""Groups whose members go on within replies of others (`echo`): what is recorded, and what is plain."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from flexmarl.contracts.commands import GroupOrder
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, Origin
from flexmarl.store.data.groups import SettledGroup
from tests.conformance.branching_team import Team, playing_of
from workers.rollout.engines import version_segments
from workers.rollout.members import play_group
from workers.rollout.turns import TurnReply, TurnRequest

pytestmark = pytest.mark.slow

MEMBERS, ROOTS, AT = 8, 4, 5
ROLES = ("speaker", "listener")
GAME = {"type": "reference_game", "attributes": 2, "values": 4, "symbols": 8, "message_length": 8}
KNOWN = (1.0, 0.5, 0.9, 0.5)
"""Thresholds: high and low entropy, confidence, jump."""


class Unsure(Team):
    """In doubt at one token of every message; replies that begin with something go on from there."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        """Tokens that were drawn."""
        self.members: list[int] = []

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        whole = await super().turn(replace(request, begun=None), deadline)
        said, begun = whole.choice, request.begun
        self.members.append(request.where.member)
        count = len(begun.token_ids) if begun else 0
        self.made += len(said.token_ids) - count
        told = [x for place in range(len(said.token_ids)) for x in (2.0 if place == AT else 0.1, 0.5, 0.8)]
        if begun is not None:
            assert len(begun.logprobs) == version_segments.count(begun.segments) == count
            said.token_ids[:count], said.logprobs[:count] = begun.token_ids, begun.logprobs
        uncertainty = told if request.sampling.uncertainty else []
        return replace(whole, choice=msgspec.structs.replace(said, uncertainty=uncertainty))


def spec_of(controller: Any = "echo", **changes: Any) -> Any:
    document = {
        "agents": {role: {} for role in ROLES},
        "environment": GAME,
        "sampling": {"branch_controller": controller},
        "batch": {"episodes_per_task": MEMBERS},
    }
    return resolve(document | changes).spec


async def settled(spec: Any, team: Team, known: Any = KNOWN, **asked: Any) -> SettledGroup:
    playing = playing_of(spec, team, **asked)
    playing = replace(playing, order=playing.order.model_copy(update={"predictor": known}))
    return await play_group(playing, GroupOrder(draw=3, task_seed=3, members=MEMBERS))


def said(group: SettledGroup) -> list[tuple[int, str, list[int], list[int], list[float]]]:
    return [(row.member, row.role, row.prompt, row.response, row.logprobs) for row in group.samples]


def continued(group: SettledGroup) -> list[EpisodeOutcome]:
    return [one for one in group.event.episodes if one.branch is not None and one.branch.root >= 0]


async def test_members_begin_with_what_their_root_said_before_the_token_in_doubt():
    team = Unsure()
    group = await settled(spec_of({"type": "echo", "most_width": 2}), team)
    outcomes = group.event.episodes
    assert [one.member for one in outcomes] == list(range(MEMBERS))
    assert {one.status for one in outcomes} == {EpisodeStatus.FINISHED}
    others = continued(group)
    assert [one.member for one in others] == list(range(ROOTS, MEMBERS)), "all the places that there are"
    assert max(sum(one.branch.root == root for one in others if one.branch) for root in range(ROOTS)) == 2
    spoken = {row.member: row for row in group.samples if row.role == "speaker"}
    for one in others:
        assert one.branch is not None
        assert (one.branch.turns, one.branch.tokens) == (0, AT)
        assert [signal.entropy for signal in one.branch.signals] == [2.0]
        own, root = spoken[one.member], spoken[one.branch.root]
        assert own.prompt == root.prompt
        assert (own.response[:AT], own.logprobs[:AT]) == (root.response[:AT], root.logprobs[:AT])
        assert own.segments == [0, len(own.response)]
    assert any(spoken[one.member].response != spoken[one.branch.root].response for one in others if one.branch)
    assert team.made == MEMBERS * (8 + 2) - AT * len(others), "what they begin with is not made again"
    first = min(place for place, member in enumerate(team.members) if member >= ROOTS)
    assert all(member >= ROOTS for member in team.members[first:]), "nobody goes on before all first ones have ended"
    notes = {one.member: one.transcript[0] for one in group.episodes}
    assert all(f"goes on from member {one.branch.root} after 5 tokens" in notes[one.member][2] for one in others)
    assert all(len(one.branch.signals) == 10 for one in outcomes[:ROOTS] if one.branch is not None)


@pytest.mark.parametrize("known", [(), (9.0, 0.5, 0.9, 0.5)], ids=["nothing is known", "no token is in doubt"])
async def test_where_no_token_is_in_doubt_the_group_is_a_plain_one_to_the_bit(known):
    plain, group = await settled(spec_of("none"), Unsure()), await settled(spec_of(), Unsure(), known)
    assert not continued(group)
    assert said(group) == said(plain)
    assert [one.scores for one in group.event.episodes] == [one.scores for one in plain.event.episodes]


async def test_with_share_0_and_in_evaluations_nothing_is_told_and_nobody_goes_on():
    class Watching(Unsure):
        asked_for = False

        async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
            self.asked_for = self.asked_for or request.sampling.uncertainty
            return await super().turn(request, deadline)

    team = Watching()
    evaluated = await settled(spec_of(), team, origin=Origin.EVAL)
    assert [one.branch for one in evaluated.event.episodes] == [None] * MEMBERS
    assert not team.asked_for
    nobody = await settled(spec_of({"type": "echo", "share": 0}), Unsure())
    assert said(nobody) == said(await settled(spec_of("none"), Unsure()))


async def test_a_member_that_is_tried_again_begins_with_the_same_tokens():
    class Broken(Unsure):
        failed = False

        async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
            if request.where.member == ROOTS and request.role == "listener" and not self.failed:
                self.failed = True
                raise RuntimeError("no")
            return await super().turn(request, deadline)

    whole, again = await settled(spec_of(), Unsure()), await settled(spec_of(), Broken())
    assert again.event.episodes[ROOTS].attempt == 2
    assert said(again) == said(whole)
    assert [one.branch for one in again.event.episodes] == [one.branch for one in whole.event.episodes]
