"""Turns that were said without surprise are left out: the worked example, ties, roles, and what has no figures."""

import pytest

from flexmarl.algorithms.turn_mask import masked
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef


def said(member, *turns):
    """Turns of an episode: role, surprisal, and tokens."""
    samples = tuple(SampleRef(role=role, turn=n, tokens=tokens) for n, (role, _, tokens) in enumerate(turns))
    return EpisodeOutcome(
        member=member, attempt=1, status=EpisodeStatus.FINISHED, samples=samples,
        surprisals=tuple(figure for _, figure, _ in turns),
    )  # fmt: skip


def ones(episodes):
    return [[1.0] * len(one.samples) for one in episodes]


def test_of_ten_turns_with_surprisals_1_to_10_the_published_quantile_keeps_eight():
    episodes = [
        said(0, *(("a", float(n), 3) for n in range(1, 6))),
        said(1, *(("a", float(n), 3) for n in range(6, 11))),
    ]
    assert masked(episodes, ones(episodes), 0.2) == [[0.0, 0.0, 1.0, 1.0, 1.0], [1.0] * 5]


def test_what_reaches_the_quantile_is_kept_ties_included():
    episodes = [said(0, ("a", 1.0, 1), ("a", 1.0, 1)), said(1, ("a", 1.0, 1), ("a", 5.0, 1))]
    assert masked(episodes, ones(episodes), 0.5) == ones(episodes)


def test_roles_are_compared_with_themselves_and_turns_without_tokens_do_not_count():
    episodes = [
        said(0, ("a", 1.0, 1), ("b", 0.1, 1), ("a", 0.0, 0)),
        said(1, ("a", 2.0, 1), ("b", 0.2, 1), ("a", 0.0, 0)),
    ]
    assert masked(episodes, ones(episodes), 0.5) == [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]


@pytest.mark.parametrize("quantile", [0.0, 0.2, 0.9])
def test_nothing_is_left_out_at_0_or_of_episodes_without_figures(quantile):
    episodes = [said(0, ("a", 1.0, 1), ("a", 9.0, 1)).model_copy(update={"surprisals": ()})]
    assert masked(episodes, [[0.5, -0.5]], quantile) == [[0.5, -0.5]]
    assert masked([said(0, ("a", 1.0, 1), ("a", 9.0, 1))], [[0.5, -0.5]], 0.0) == [[0.5, -0.5]]
