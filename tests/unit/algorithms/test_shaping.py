"""What a row's reward counts as, and which members are compared at all."""

import itertools
import random

import pytest

from flexmarl.algorithms.selection import max_variance, widest_pairs
from flexmarl.algorithms.shaping import SHAPERS
from flexmarl.contracts.specification.shaping import MaporlOptions, MartiOptions, NoShapingOptions, OverlongOptions
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef

LIMITS = {"a": 20480, "b": 8}


def episode(samples=(), score=0.0, member=0):
    return EpisodeOutcome(
        member=member,
        attempt=1,
        status=EpisodeStatus.FINISHED,
        team_score=score,
        samples=tuple(SampleRef(role=r, turn=t, tokens=n, reward=w) for r, t, n, w in samples),
    )


def shaped(settings, samples, rewards=None):
    found = episode(samples)
    own = rewards or [sample.reward for sample in found.samples]
    return SHAPERS.make(settings).shape(LIMITS, found, own)


@pytest.mark.parametrize(("tokens", "cost"), [(1, 0.0), (16384, 0.0), (18432, 0.5), (20480, 1.0), (30000, 1.0)])
def test_a_long_reply_costs_more_the_nearer_it_comes_to_its_longest(tokens, cost):
    assert shaped(OverlongOptions(buffer_tokens=4096), [("a", 0, tokens, 0.0)], [1.0]) == [pytest.approx(1.0 - cost)]
    half = OverlongOptions(buffer_tokens=4096, penalty=0.5)
    assert shaped(half, [("a", 0, tokens, 0.0)], [1.0]) == [pytest.approx(1.0 - 0.5 * cost)]


def test_each_reply_pays_for_its_own_length_and_its_roles_limit():
    assert shaped(
        OverlongOptions(buffer_tokens=4), [("a", 0, 8, 0.0), ("b", 0, 8, 0.0), ("b", 1, 6, 0.0)], [1.0] * 3
    ) == [
        1.0,
        0.0,
        0.5,
    ]


@pytest.mark.parametrize(
    ("form", "score", "before", "expected"),
    [
        ("margin", 1.0, 0.0, 1.5),
        ("margin", 1.0, 1.0, 1.0),
        ("margin", 0.0, 1.0, -0.5),
        ("margin", 1.0, 0.5, 1.25),
        ("quality", 1.0, 1.0, 1.5),
        ("quality", 0.0, 0.0, -0.5),
        ("quality", 1.0, 0.0, 1.0),
        ("quality", 0.0, 1.0, 0.0),
    ],
)
def test_a_turn_is_judged_by_what_came_before_it(form, score, before, expected):
    values = shaped(MartiOptions(form=form), [("a", 0, 1, before), ("a", 1, 1, score)])
    assert values == [before, pytest.approx(expected)]


def test_history_is_ones_own_or_the_teams():
    samples = [("a", 0, 1, 1.0), ("b", 0, 1, 0.0), ("a", 1, 1, 1.0), ("b", 1, 1, 1.0)]
    assert shaped(MartiOptions(), samples) == [1.0, 0.0, 1.0, 1.5]
    assert shaped(MartiOptions(history="team"), samples) == [1.0, 0.0, 1.25, 1.25]


def test_a_turn_earns_what_the_team_scores_later():
    samples = [("a", 0, 1, 0.4), ("b", 0, 1, 0.9), ("a", 1, 1, 0.6), ("b", 1, 1, 1.0)]
    values = shaped(MaporlOptions(), samples)
    assert values[0] == pytest.approx((0.4 + 0.3 * 0.8) / 1.3)
    assert values[2:] == [0.6, 1.0]
    assert shaped(MaporlOptions(gamma=0.0), samples) == [0.4, 0.9, 0.6, 1.0]
    assert shaped(MaporlOptions(), [(r, t, n, 0.7) for r, t, n, _ in samples]) == pytest.approx([0.7] * 4)


@pytest.mark.parametrize(
    "settings",
    [
        NoShapingOptions(),
        OverlongOptions(),
        MartiOptions(),
        MartiOptions(form="quality", history="team"),
        MaporlOptions(),
    ],
)
def test_shapers_are_aligned_and_follow_the_order_of_samples(settings):
    rng = random.Random(3)
    samples = [(role, turn, rng.randrange(1, 9), rng.random()) for turn in range(3) for role in ("a", "b")]
    values = shaped(settings, samples)
    order = rng.sample(range(6), 6)
    assert shaped(settings, [samples[i] for i in order]) == [values[i] for i in order]
    assert shaped(settings, []) == []


def scores_of(episodes):
    return sorted(episode.team_score for episode in episodes)


def variance(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def test_the_members_kept_differ_most():
    rng = random.Random(7)
    for _ in range(100):
        scores = [rng.choice([rng.random(), 0.0, 1.0]) for _ in range(10)]
        kept = scores_of(max_variance([episode(score=s, member=i) for i, s in enumerate(scores)], 4))
        best = max(variance(choice) for choice in itertools.combinations(scores, 4))
        assert variance(kept) == pytest.approx(best, abs=1e-12)


def test_one_success_among_many_is_kept_beside_failures():
    group = [episode(score=float(i == 5), member=i) for i in range(8)]
    kept = max_variance(group, 4)
    assert scores_of(kept) == [0.0, 0.0, 0.0, 1.0]
    assert {e.member for e in max_variance(group[::-1], 4)} == {e.member for e in kept}
    assert max_variance(group, 8) == group
    assert max_variance([], 4) == []


def test_half_of_the_pairs_are_two_right_and_two_wrong():
    """The worked example of Shuffle-R1: of 1, 1 and six times 0, half of the pairs are 2 right and 2 wrong."""
    group = [episode(score=float(i in (2, 5)), member=i) for i in range(8)]
    kept = widest_pairs(group, 4)
    assert scores_of(kept) == [0.0, 0.0, 1.0, 1.0]
    assert [e.member for e in kept] == sorted(e.member for e in kept), "in the order given"
    assert {e.member for e in widest_pairs(group[::-1], 4)} == {e.member for e in kept}


def test_pairs_are_the_widest_and_whoever_has_no_partner_is_left_out():
    rng = random.Random(8)
    for size in (0, 1, 2, 5, 8, 9):
        scores = [rng.choice([rng.random(), 0.0, 1.0]) for _ in range(size)]
        group = [episode(score=s, member=i) for i, s in enumerate(scores)]
        for keep in (2, 4, 8):
            kept, pairs = scores_of(widest_pairs(group, keep)), min(keep, size) // 2
            ranked = sorted(scores)
            assert kept == sorted(ranked[:pairs] + ranked[size - pairs :])
    assert widest_pairs(group[:8], 8) == group[:8], "all pairs are all members"
