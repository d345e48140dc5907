"""Worked examples of published methods that no test of a method's own has: one test each, by what runs use."""

import math

import numpy as np
import pytest

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.branching import BRANCH_CONTROLLERS
from flexmarl.algorithms.filters import GROUP_FILTERS, signal_of
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.member_counts import mixed
from flexmarl.algorithms.selection import max_variance
from flexmarl.algorithms.token_branching import signals_of
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.branch_controllers import BRANCH_CONTROLLER
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.task_choice import GROUP_FILTER
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from workers.training.pairs import weigh
from workers.training.unrolling import Unrolling
from workers.training.wire import TrainRow

PAIR = [TrainRow(b"", b"", b"", b"", 1.0, [sign], 1.0, pair="0:a") for sign in (1.0, -1.0)]


def group(*scores: float) -> list[EpisodeOutcome]:
    return [
        EpisodeOutcome(
            member=member, attempt=1, status=EpisodeStatus.FINISHED, team_score=score, solved=score == 1.0,
            samples=(SampleRef(role="a", turn=0, tokens=3),),
        )
        for member, score in enumerate(scores)
    ]  # fmt: skip


@pytest.mark.parametrize(("chance", "kept"), [(0.5, 0.9922), (0.05, 0.3366)])
def test_dapo_the_chance_that_eight_members_do_not_end_alike(chance: float, kept: float):
    assert mixed(chance, 8) == pytest.approx(kept, abs=5e-5)


def test_dapo_groups_drawn_for_one_that_is_kept():
    assert 1.0 / mixed(0.05, 8) == pytest.approx(2.97, abs=5e-3)


@pytest.mark.parametrize(("solved", "kept"), [(8, False), (0, False), (3, True)])
def test_dapo_groups_that_all_solved_or_all_missed_are_dropped(solved: int, kept: bool):
    own, estimator = group(*[1.0] * solved, *[0.0] * (8 - solved)), ADVANTAGES.make(ADVANTAGE.options("grpo"))
    advantages = estimator.estimate(GROUP_KEYS["episode_group"], own, [estimator.rewards(one) for one in own])
    sampling = GROUP_FILTERS.make(GROUP_FILTER.options("dynamic_sampling"))
    assert sampling.keeps(signal_of(own, advantages)) is kept


def test_pods_one_success_of_eight_is_kept_with_three_failures_and_a_variance_of_3_16():
    scores = [one.team_score for one in max_variance(group(0, 0, 0, 0, 0, 1, 0, 0), 4)]
    assert sorted(scores) == [0.0, 0.0, 0.0, 1.0]
    assert np.var(scores) == 3 / 16


@pytest.mark.parametrize(
    "tokens",
    [[0.1, 0.3, 0.3, 0.9, 0.3, 0.3], [0.1, 1.0, 1.0, 2.0, 1.0, 1.0], [2.0, 0.3, 0.3, 2.0, 0.3, 0.3]],
    ids=["certain", "confident", "no jump"],
)
def test_echo_a_reply_in_which_nothing_triggers_stays_one_chain(tokens: list[float]):
    controller = BRANCH_CONTROLLERS.make(BRANCH_CONTROLLER.options("echo"))
    assert controller.doubted(signals_of(tokens * 10, 5), (1.0, 0.1, 0.7, 0.2)) is None
    assert controller.doubted(signals_of([0.1, 0.3, 0.3, 2.0, 0.3, 0.3] * 10, 5), (1.0, 0.1, 0.7, 0.2)) is not None


def test_dpo_equal_policies_have_the_loss_log_2_and_a_drive_of_half_beta():
    found = weigh(PAIR, (0.0, 0.0), LOSS.options("online_dpo", beta=0.1))
    assert found.loss == pytest.approx(math.log(2.0))
    assert found.loss == pytest.approx(0.6931, abs=5e-5)
    assert found.advantages == [[pytest.approx(0.05)], [pytest.approx(-0.05)]]


def test_dpo_the_other_member_as_the_better_one_turns_the_sign_around():
    settings = LOSS.options("online_dpo", beta=0.1)
    found, swapped = weigh(PAIR, (0.0, 0.0), settings), weigh(PAIR[::-1], (0.0, 0.0), settings)
    assert swapped.advantages == [[-one] for [one] in found.advantages]


def test_ipo_equal_policies_have_the_square_of_the_target():
    found = weigh(PAIR, (0.0, 0.0), LOSS.options("online_dpo", form="ipo", beta=0.1))
    assert found.loss == pytest.approx(5.0**2)
    assert weigh(PAIR, (5.0, 0.0), LOSS.options("online_dpo", form="ipo", beta=0.1)).loss == 0.0


@pytest.mark.parametrize("lead", [-3.0, 0.0, 70.0])
def test_mnpo_of_two_players_of_whom_one_is_the_reference_is_ipo(lead: float):
    mnpo, ipo = (LOSS.options("online_dpo", form=form, beta=0.0075) for form in ("mnpo", "ipo"))
    assert weigh(PAIR, (lead, 0.0), mnpo) == weigh(PAIR, (lead, 0.0), ipo)
    assert weigh(PAIR, (66.667, 0.0), mnpo).loss == pytest.approx(0.0, abs=1e-6)


def test_dipo_a_reply_of_one_step_is_predicted_from_masks_alone():
    prompt, reply = np.arange(4, 9, dtype="<i4"), np.arange(3, 11, dtype="<i4")
    row = TrainRow(prompt.tobytes(), reply.tobytes(), b"", b"", 1.0, [1.0], 1.0, steps=np.zeros(8, "<i2").tobytes())
    unrolling = Unrolling(4, False, 7)
    sight = unrolling.sight(row)
    given = np.frombuffer(unrolling.input_of(row, sight, 0), "<i4")
    assert len(sight.predicting) == 8
    assert not given[sight.predicting].any(), "the mask is the word 0"
