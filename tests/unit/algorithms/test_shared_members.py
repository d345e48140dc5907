"""What is learned of members from others: their successes alone, and the own ones as ever."""

from flexmarl.algorithms.shared_members import learned
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus


def member(number: int, shared: bool) -> EpisodeOutcome:
    return EpisodeOutcome(member=number, attempt=1, status=EpisodeStatus.FINISHED, shared=shared)


EPISODES = [member(0, False), member(1, False), member(2, True), member(3, True)]
ADVANTAGES = [[0.5, -0.25], [-1.0], [-0.75, 0.5], [0.25]]


def test_failures_of_others_get_advantage_0_and_all_else_stays() -> None:
    assert learned(EPISODES, ADVANTAGES, "successes") == [[0.5, -0.25], [-1.0], [0.0, 0.5], [0.25]]


def test_all_of_it_is_learned_unless_asked() -> None:
    assert learned(EPISODES, ADVANTAGES, "all") == ADVANTAGES


def test_an_outcome_says_that_it_is_of_others_only_where_it_is() -> None:
    assert "shared" not in member(0, False).model_dump()
    assert EpisodeOutcome.model_validate(member(2, True).model_dump()).shared
