"""How often rows count: pairs drawn again by the size of their advantages (Shuffle-R1)."""

import random
from collections import Counter

import pytest

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.arrangers import ARRANGERS, drawn
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.arrangers import ARRANGER
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from tests.unit.orchestrator.fake_parts import refusals

SEEDS = 2000


def row(member, *advantages, turn=0):
    return (member, 1, "solver", turn, advantages, 1.0, 5)


def group_of(rewards):
    """Return the rows of a group by what its members earned, with the advantages of a run."""
    group = [
        EpisodeOutcome(
            member=n, attempt=1, status=EpisodeStatus.FINISHED, team_score=r,
            samples=(SampleRef(role="solver", turn=0, tokens=5),),
        )
        for n, r in enumerate(rewards)
    ]  # fmt: skip
    options = ADVANTAGE.options("grpo", divide_by_std=True)
    found = ADVANTAGES.make(options).estimate(GROUP_KEYS["episode_group"], group, [[r] for r in rewards])
    return [row(n, *own) for n, own in enumerate(found)]


def weights(groups, seed=1, rounds=8):
    return ARRANGERS.make(ARRANGER.options("advantage_shuffle", rounds=rounds)).weights(groups, seed)


def test_the_worked_example():
    """Of 1, 1 and six times 0: A = 1.620 and -0.540 by the sample's deviation; pairs weigh 2 : 2 : 1 : 1.

    Ours is the population's deviation, so both are the square root of 8 / 7 times as much.
    """
    rows, unlike = group_of([1, 1, 0, 0, 0, 0, 0, 0]), (8 / 7) ** 0.5
    assert [own[4][0] / unlike for own in rows] == pytest.approx([1.620185] * 2 + [-0.540062] * 6, rel=1e-5)
    counts = Counter()
    for seed in range(SEEDS):
        (found,) = weights([rows], seed, rounds=4)  # four pairs in four rounds: each draws one, as the sizes say
        assert sum(found) == 8
        counts.update({place: value for place, value in enumerate(found) if value})
        assert found[0] == found[7], "a pair is drawn whole: the best with the worst"
        assert found[1] == found[6]
        assert found[2] == found[5]
    shares = [counts[place] / (4 * SEEDS) for place in range(4)]
    assert shares == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6], abs=4 * (0.25 / (4 * SEEDS)) ** 0.5)


def test_a_round_never_draws_a_pair_twice_and_the_total_stays():
    rng = random.Random(7)
    for seed in range(200):
        sizes = [rng.choice([0.0, rng.expovariate(1.0), 50.0]) for _ in range(rng.randint(0, 20))]
        rounds = rng.randint(1, 10)
        times = drawn(sizes, rounds, seed)
        assert sum(times) == len(sizes)
        assert max(times, default=0) <= rounds
    assert drawn([1.0, 2.0, 3.0], 1, 5) == [1, 1, 1], "one round draws each once"
    assert drawn([1e9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 4, 5)[0] == 4, "once in each round"


def test_chances_are_in_proportion_to_sizes():
    sizes = [4.0, 3.0, 2.0, 1.0]
    totals = [sum(column) for column in zip(*(drawn(sizes, 4, seed) for seed in range(SEEDS)), strict=True)]
    assert [total / (4 * SEEDS) for total in totals] == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.025)
    assert totals == sorted(totals, reverse=True)


def test_pairs_without_advantage_fill_up_alike():
    """All of size 0: equal chances. Fewer with a size than a round needs: these first, the rest alike."""
    totals = [sum(column) for column in zip(*(drawn([0.0] * 4, 4, seed) for seed in range(SEEDS)), strict=True)]
    assert totals == pytest.approx([SEEDS] * 4, rel=0.1)
    assert {max(drawn([1.0] * 4, 4, seed)) for seed in range(200)} == {1, 2, 3, 4}, "each round draws anew"
    for seed in range(50):
        times = drawn([2.0, 0.0, 0.0, 0.0], 2, seed)
        assert times[0] == 2
        assert sum(times[1:]) == 2


def test_a_member_with_several_turns_counts_by_their_mean_and_all_its_rows_alike():
    rows = [row(0, 3.0, 1.0), row(0, 2.0, turn=2), row(1, -0.5), row(2, 0.0)]
    for seed in range(20):
        (found,) = weights([rows], seed, rounds=2)
        assert found[0] == found[1] == found[2], "the best member with the worst"
        assert found[3] == 2 - found[0], "the one in the middle is alone, and two are drawn in all"


def test_neither_the_order_of_rows_nor_anything_but_the_seed_matters():
    groups = [group_of([1, 0, 0.5, 0.25]), group_of([0, 0, 1, 0]), []]
    found = weights(groups, 3)
    assert found == weights(groups, 3)
    turned = weights([rows[::-1] for rows in groups], 3)
    assert [own[::-1] for own in turned] == found
    assert any(weights(groups, seed) != found for seed in range(4, 9))
    assert weights([], 3) == []


def test_none_counts_every_row_once():
    arranger = ARRANGERS.make(ARRANGER.options())
    assert not arranger.options.arranges
    assert arranger.weights([group_of([1, 0]), []], 3) == [[1.0, 1.0], []]


@pytest.mark.parametrize(
    ("changes", "pointer", "code", "legal"),
    [
        (
            {"mechanisms__trainer_protocol": "micro_batch"},
            "/mechanisms/trainer_protocol", "needs_batch", "such as none",
        ),
        (
            {"mechanisms__trainer_protocol": "batch", "algorithm__advantage": "reinforce"},
            "/algorithm/advantage/type", "needs_group_advantage", "Set grpo",
        ),
        (
            {"mechanisms__trainer_protocol": "batch", "algorithm__advantage": "best_worst",
             "algorithm__loss": "online_dpo", "algorithm__entropy__start": 0.0},
            "/algorithm/loss/type", "not_with_arranger", "ppo_clip",
        ),
        (
            {"mechanisms__trainer_protocol": "batch", "sampling__replay": {"type": "archive"},
             "algorithm__loss": "ppo_clip"},
            "/sampling/arranger/type", "not_with_replay", "Set none",
        ),
    ],
)  # fmt: skip
def test_refusals_name_a_legal_value(changes, pointer, code, legal):
    found = refusals(sampling__arranger="advantage_shuffle", **changes)
    assert [(pointer, code)] == [(one.pointer, one.code) for one in found]
    assert legal in found[0].hint
