"""What a group tells of the surprise of its turns: of those of training, where turns are kept by it, else nothing."""

import pytest

from flexmarl.contracts.commands import GroupOrder
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import Origin
from flexmarl.store.data.groups import SettledGroup
from tests.conformance.branching_team import Team, playing_of
from workers.rollout.members import play_group

MEMBERS = 4


async def settled(quantile: float, origin: Origin = Origin.TRAIN) -> SettledGroup:
    document = {
        "agents": {"guesser": {}, "hinter": {}},
        "environment": {"type": "hot_cold"},
        "sampling": {"turn_quantile": quantile},
        "batch": {"episodes_per_task": MEMBERS},
    }
    playing = playing_of(resolve(document).spec, Team(), origin=origin)
    return await play_group(playing, GroupOrder(draw=3, task_seed=3, members=MEMBERS))


async def test_it_is_the_mean_of_what_the_engine_reported_of_each_turn() -> None:
    group = await settled(0.2)
    for episode in group.event.episodes:
        rows = {(row.role, row.turn): row.logprobs for row in group.samples if row.member == episode.member}
        told = [-sum(rows[one.role, one.turn]) / one.tokens for one in episode.samples]
        assert episode.surprisals == pytest.approx(told)
        assert min(episode.surprisals) > 0.0


@pytest.mark.parametrize(("quantile", "origin"), [(0.0, Origin.TRAIN), (0.2, Origin.EVAL)])
async def test_where_nobody_asks_nothing_is_told(quantile: float, origin: Origin) -> None:
    group = await settled(quantile, origin)
    assert [one.surprisals for one in group.event.episodes] == [()] * MEMBERS
    assert all("surprisals" not in one.model_dump() for one in group.event.episodes)
