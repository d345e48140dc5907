"""Where replies are continued: ECHO's rule by the quantiles of a run's own tokens."""

import math

import numpy as np
import pytest

from flexmarl.algorithms.branching import BRANCH_CONTROLLERS
from flexmarl.algorithms.prefix_predictor import PrefixBelief
from flexmarl.algorithms.token_branching import (
    KEPT,
    LEAST_DEPTH,
    TOLD,
    Thresholds,
    first_in_doubt,
    learn_thresholds,
    seen_in,
    signals_of,
    spread,
    width_of,
)
from flexmarl.contracts.specification.branch_controllers import BRANCH_CONTROLLER, EchoOptions
from flexmarl.contracts.wire import Branch, EpisodeOutcome, EpisodeStatus, TokenSignal

KNOWN = Thresholds(high=2.0, low=1.0, confidence=0.5, jump=0.3)


def outcome(member: int, signals: tuple[TokenSignal, ...], root: int = -1) -> EpisodeOutcome:
    branch = Branch(root=root, signals=signals)
    return EpisodeOutcome(member=member, attempt=1, status=EpisodeStatus.FINISHED, branch=branch)


@pytest.mark.parametrize(("likeliest", "mass"), [(1, 0.2), (5, 0.9)])
def test_a_confidence_is_the_mean_mass_of_the_last_four_tokens_and_a_jump_the_rise_of_entropy(likeliest, mass):
    told = [1.0, mass, 0.0, 1.5, 0.4, 0.0] if likeliest == 1 else [1.0, 0.0, mass, 1.5, 0.0, 0.4]
    first, second = map(tuple, signals_of(told, likeliest))
    assert first == (1.0, pytest.approx(mass), 0.0), "nothing is before the first token"
    assert second == (1.5, pytest.approx((mass + 0.4) / 2), 0.5)
    many = signals_of([x for n in range(6) for x in (0.0, float(n), float(n))], likeliest)
    assert many[:, 1].tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.5, 3.5])


def test_only_the_first_token_in_doubt_counts_and_none_near_the_beginning():
    calm, doubt = TokenSignal(0.5, 0.9, 0.0), TokenSignal(2.0, 0.5, 0.3)
    assert first_in_doubt(np.array([doubt] * LEAST_DEPTH), KNOWN) is None
    assert first_in_doubt(np.array([calm] * 6 + [doubt, doubt]), KNOWN) == 6
    for less in (doubt._replace(entropy=1.99), doubt._replace(confidence=0.51), doubt._replace(jump=0.29)):
        assert first_in_doubt(np.array([calm] * 6 + [less]), KNOWN) is None
    assert first_in_doubt(np.zeros((0, 3)), KNOWN) is None


@pytest.mark.parametrize(
    ("entropy", "confidence", "most", "width"),
    [(2.0, 0.5, 4, 3), (2.5, 0.5, 4, 4), (2.0, 0.0, 8, 4), (9.0, 0.0, 4, 4), (2.0, 0.5, 1, 1), (1.0, 1.0, 4, 1)],
)
def test_the_width_is_the_published_one_within_its_bounds(entropy, confidence, most, width):
    """round(1 + 2 (H - low) / (high - low) - (C - c) / |c|)."""
    assert width_of(TokenSignal(entropy, confidence, 1.0), KNOWN, most) == width


def test_widths_are_bounded_where_all_tokens_were_alike():
    same = Thresholds(1.0, 1.0, 0.0, 0.0)
    assert 1 <= width_of(TokenSignal(1.0, 0.0, 0.0), same, 4) <= 4


def test_thresholds_are_quantiles_of_the_last_tokens_whatever_arrived_first():
    options = EchoOptions(high_quantile=0.75, low_quantile=0.25, confidence_quantile=0.5, jump_quantile=0.75)
    rows = [[float(n), n / 10, float(-n)] for n in range(9)]
    found = []
    for order in ((0, 1), (1, 0)):
        belief = PrefixBelief()
        for draw in order:
            belief.waiting.setdefault(3, {})[draw] = rows[:4] if draw == 0 else rows[4:]
        learn_thresholds(belief, 3, options)
        assert not belief.waiting
        found.append((belief.weights, belief.recent))
    assert found[0] == found[1]
    assert found[0][0] == pytest.approx([6.0, 2.0, 0.4, -2.0])
    belief.waiting[4] = {0: [[100.0, 1.0, 0.0]] * KEPT}
    learn_thresholds(belief, 4, options)
    assert len(belief.recent) == KEPT
    assert belief.weights == [100.0, 100.0, 1.0, 0.0], "older ones have left"
    learn_thresholds(PrefixBelief(), 0, options)


def test_the_core_hears_of_first_episodes_alone_and_of_few_of_their_tokens():
    many = tuple(TokenSignal(float(n), 0.0, 0.0) for n in range(TOLD * 3 + 1))
    few = spread(np.array(many))
    assert len(few) <= TOLD
    assert few[0].entropy == 0.0
    assert few[-1].entropy > TOLD * 2
    assert spread(np.array(many[:5])) == many[:5]
    heard = seen_in([outcome(1, many[:2]), outcome(0, many[2:3]), outcome(2, many[3:4], root=0)])
    assert [row[0] for row in heard] == [2.0, 0.0, 1.0]


def test_nothing_is_continued_before_anything_is_known_and_the_published_constants_never_fire():
    controller = BRANCH_CONTROLLERS.make(BRANCH_CONTROLLER.options("echo"))
    # The most uncertain reply there can be over ten words.
    uniform = signals_of([math.log(10), 0.1, 0.5] * 4 + [0.0, 1.0, 1.0] + [math.log(10), 0.1, 0.5] * 4, 5)
    assert controller.doubted(uniform, ()) is None
    assert controller.doubted(uniform, (3.5, 1.0, 1.2, 0.2)) is None
    place, width = controller.doubted(uniform, (2.3, 0.1, 0.7, 0.2))
    assert (place, 1 <= width <= 4) == (5, True)
    assert np.isclose(uniform[5, 2], math.log(10))
