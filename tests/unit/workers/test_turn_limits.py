"""An episode whose turns are limited ends after so many, finished and unsolved; one that ends itself is what it was."""

import pytest

from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.wire import EpisodeStatus, Origin, PolicyPin
from tests.unit.workers.test_external import CODEC, FAMILY
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder, play_episode
from workers.rollout.recorder import settled_group
from workers.rollout.speech import Seat
from workers.rollout.turns import TurnReply, TurnRequest

SEAT = Seat("team", PolicyPin(version=0, digest="d" * 64), CODEC, 1, 1.0)
SEATS = dict.fromkeys(("guesser", "hinter"), SEAT)
SECRET = 3
"""Seed of the task, and place of its number among those that may be said."""


class Guessing:
    """Stands in for the client: the guesser finds the number with a certain guess, counted from 0."""

    def __init__(self, finds: int) -> None:
        self._finds, self._guesses = finds, 0

    async def turn(self, request: TurnRequest, deadline: float) -> TurnReply:
        said = request.allowed[0]
        if request.role == "guesser":
            said = request.allowed[SECRET if self._guesses == self._finds else SECRET + 1]
            self._guesses += 1
        return TurnReply(CompletionChoice(0, [said], [-0.5], "length", [0, 1]), "life", 0.0)

    async def until_held(self, request: TurnRequest, at_most_s: float) -> float:
        return 0.0


async def played(most: int, finds: int = 9) -> EpisodeAttempt:
    order = EpisodeOrder(0, 0, 1, SECRET, False, 7, 600.0, 600.0, None, most_turns=most)
    return await play_episode(order, FAMILY, SEATS, Guessing(finds))


async def test_after_its_last_turn_an_episode_is_finished_unsolved_and_scores_nothing() -> None:
    attempt = await played(3)
    assert (attempt.status, attempt.reason, len(attempt.turns)) == (EpisodeStatus.FINISHED, "", 3)
    assert attempt.outcome is not None
    assert (attempt.outcome.solved, attempt.outcome.team_score, attempt.outcome.facts) == (False, 0.0, {"truncated": 1})
    order = PlayGroups(
        pool="p", epoch=1, origin=Origin.TRAIN, groups=(), pins={"team": SEAT.pin}, sampling_seed=0
    )  # fmt: skip
    group = settled_group(order, 1, [attempt], SEATS)
    assert [(one.role, one.turn) for one in group.event.episodes[0].samples] == [
        ("guesser", 0), ("hinter", 0), ("guesser", 1),
    ]  # fmt: skip
    assert "no success of its task was longer" in str(group.episodes[0].transcript[-1])


@pytest.mark.parametrize(("most", "finds", "turns"), [(0, 9, 7), (7, 9, 7), (3, 1, 3), (5, 1, 3)])
async def test_an_episode_that_ends_itself_by_then_is_what_it_was(most: int, finds: int, turns: int) -> None:
    attempt, free = await played(most, finds), await played(0, finds)
    assert attempt.outcome is not None
    assert free.outcome is not None
    assert (attempt.outcome.solved, len(attempt.turns)) == (finds == 1, turns)
    assert attempt.outcome.facts.pop("truncated", None) == (0.0 if most else None)
    assert attempt.outcome == free.outcome
