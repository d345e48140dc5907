"""Slow environments are replaced: a member has one outcome, of whichever of its two environments finishes first."""

import asyncio

import pytest

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.wire import EpisodeStatus
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder
from workers.rollout.spares import play_with_spares

NEVER = 3600.0


def attempt_of(member, attempt, status=EpisodeStatus.FINISHED):
    order = EpisodeOrder(
        draw=0, member=member, attempt=attempt, task_seed=0, held_out=False, sampling_seed=0, timeout_s=1.0,
        weights_timeout_s=1.0, latency=None,
    )  # fmt: skip
    return EpisodeAttempt(order, status)


class Played:
    """Plays members for given seconds; `ended` and `given_up` tell what became of each environment."""

    def __init__(self, first, second=None, failed=()):
        self.first, self.second, self.failed = first, second or {}, set(failed)
        self.begun, self.given_up = [], []

    async def play(self, member, attempt):
        self.begun.append((member, attempt))
        try:
            await asyncio.sleep((self.first if attempt == 1 else self.second)[member])
        except asyncio.CancelledError:
            self.given_up.append((member, attempt))
            raise
        status = EpisodeStatus.FAILED if (member, attempt) in self.failed else EpisodeStatus.FINISHED
        return attempt_of(member, attempt, status)

    async def group(self, spares):
        playing = [asyncio.create_task(self.play(member, 1)) for member in self.first]
        attempts = await asyncio.wait_for(play_with_spares(playing, spares, lambda member: self.play(member, 2)), 60.0)
        assert all(task.done() for task in playing), "nothing plays on"
        return [(own.order.member, own.order.attempt, own.replaced) for own in attempts]


async def test_the_slowest_members_are_played_again_and_the_first_to_finish_counts():
    played = Played({0: 0.01, 1: NEVER, 2: 0.02, 3: NEVER}, {1: 0.02, 3: 0.03})
    assert await played.group(2) == [(0, 1, False), (1, 2, True), (2, 1, False), (3, 2, True)]
    assert sorted(played.given_up) == [(1, 1), (3, 1)]


async def test_a_first_environment_that_finishes_after_all_counts():
    played = Played({0: 0.01, 1: 0.5}, {1: NEVER})
    assert await played.group(1) == [(0, 1, False), (1, 1, False)]
    assert played.given_up == [(1, 2)]


async def test_no_environment_is_started_while_more_members_play_than_there_are_spares():
    played = Played({0: 0.01, 1: 0.1, 2: 0.1}, {1: 0.2, 2: 0.2})
    await played.group(1)
    assert len([own for own in played.begun if own[1] == 2]) <= 1


async def test_a_failure_counts_only_when_both_failed():
    first = Played({0: 0.01, 1: 0.5}, {1: 0.6}, failed={(1, 1)})
    assert (await first.group(1))[1] == (1, 2, True)
    both = Played({0: 0.01, 1: 0.5}, {1: 0.6}, failed={(1, 1), (1, 2)})
    assert (await both.group(1))[1][2] is False


async def test_a_group_that_is_given_up_leaves_no_environment_behind():
    played = Played({0: 0.01, 1: NEVER}, {1: NEVER})
    work = asyncio.create_task(play_with_spares(
        [asyncio.create_task(played.play(member, 1)) for member in (0, 1)], 1, lambda member: played.play(member, 2)
    ))  # fmt: skip
    async with asyncio.timeout(60.0):
        while (1, 2) not in played.begun:
            await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert sorted(played.given_up) == [(1, 1), (1, 2)]


@pytest.mark.parametrize(
    ("redundancy", "pointer"),
    [
        ({"type": "extra_environments", "extra": 0}, "/mechanisms/redundancy/extra"),
        ({"type": "extra_environments", "extra": 9}, "/mechanisms/redundancy/extra"),
        ({"type": "extra_environments", "extra": 1, "surplus": "keep"}, "/mechanisms/redundancy/surplus"),
    ],
)
def test_what_spare_environments_cannot_be_is_refused(redundancy, pointer):
    fields = {"agents": {"speaker": {}, "listener": {}}, "environment": {"type": "reference_game"}}
    with pytest.raises(SpecProblems) as caught:
        resolve(fields | {"mechanisms": {"redundancy": redundancy}})
    assert [problem.pointer for problem in caught.value.problems] == [pointer]
