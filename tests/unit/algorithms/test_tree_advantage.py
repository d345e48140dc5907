"""Advantages over trees: worked by hand, plain GRPO where nothing branches, and every turn counted once."""

import random

import pytest

from flexmarl.algorithms.advantages import ADVANTAGES, STD_EPSILON
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.tree_advantage import TreeGrpo
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.wire import Branch, EpisodeOutcome, EpisodeStatus, Prefix, SampleRef

KEY = GROUP_KEYS["episode_group"]


def played(member, score, roles, ends=None, continues=None):
    """An episode whose turns are said by `roles`; `ends`: where its rounds end; `continues`: root and turns."""
    if continues is None:
        places = ends or range(1, len(roles))
        branch = Branch(prefixes=tuple(Prefix(turns=n, logprob=0.0) for n in places))
    else:
        branch = Branch(root=continues[0], turns=continues[1])
    samples = tuple(SampleRef(role=role, turn=n, tokens=1) for n, role in enumerate(roles))
    return EpisodeOutcome(
        member=member, attempt=1, status=EpisodeStatus.FINISHED, scores=dict.fromkeys("ab", score), team_score=score,
        solved=score == 1.0, samples=samples, branch=branch,
    )  # fmt: skip


def judged(episodes, nearest=False, **settings):
    made = TreeGrpo(ADVANTAGE.options("grpo", **settings), nearest)
    return made.estimate(KEY, episodes, [made.rewards(one) for one in episodes])


def test_a_turn_is_compared_with_what_was_said_in_its_place_and_else_with_the_first_turns():
    episodes = [
        played(0, 1.0, "aaa"),
        played(1, 0.0, "aaa"),
        played(2, 1.0, "aa", continues=(1, 1)),
        played(3, 0.0, "a", continues=(1, 2)),
        played(4, 0.0, "aa", continues=(1, 1)),
    ]
    # Of member 1 the first turn led to 0, 1, 0 and 0; its second, beside those of 2 and 4, to 0 and 0.
    first, siblings = [1.0, 0.25], [0.0, 1.0, 0.0]
    mean, beside = sum(first) / 2, sum(siblings) / 3
    found = judged(episodes)
    assert found[0] == pytest.approx([1.0 - mean] * 3)
    assert found[1] == pytest.approx([0.25 - mean, 0.0 - beside, 0.0])
    assert found[2] == pytest.approx([1.0 - beside, 1.0 - mean])
    assert found[3] == [0.0], "equal to its sibling"
    assert found[4] == pytest.approx([0.0 - beside, 0.0 - mean])


def test_turns_without_siblings_may_be_compared_as_the_nearest_before_them():
    episodes = [played(0, 1.0, "aaaa"), played(1, 0.0, "aaaa"), played(2, 1.0, "aa", continues=(1, 2))]
    found = judged(episodes, nearest=True)
    assert found[0] == pytest.approx([0.25] * 4), "nothing before them branched"
    assert found[1] == pytest.approx([-0.25, -0.25, -0.5, -0.5])
    assert found[2] == pytest.approx([0.5, 0.5])
    assert judged(episodes)[1:] == [pytest.approx([-0.25, -0.25, -0.5, -0.75]), pytest.approx([0.5, 0.25])]


def test_siblings_are_divided_by_their_own_deviation():
    episodes = [played(0, 1.0, "aa"), played(1, 0.0, "aa"), played(2, 0.5, "a", continues=(1, 1))]
    found = judged(episodes, divide_by_std=True)
    roots, siblings = 0.375 + STD_EPSILON, 0.25 + STD_EPSILON  # of 1 and 0.25, and of 0 and 0.5
    assert found[0] == pytest.approx([0.375 / roots] * 2)
    assert found[1] == pytest.approx([-0.375 / roots, -0.25 / siblings])
    assert found[2] == pytest.approx([0.25 / siblings])


@pytest.mark.parametrize("settings", [{}, {"divide_by_std": True}, {"team_share": 0.3}])
def test_without_branches_it_is_plain_grpo_to_the_bit(settings):
    chances, plain = random.Random(4), ADVANTAGES.make(ADVANTAGE.options("grpo", **settings))
    for _ in range(20):
        episodes = [played(n, chances.random(), chances.choice(("a", "ab", "aba"))) for n in range(5)]
        rewards = [plain.rewards(one) for one in episodes]
        assert judged(episodes, **settings) == plain.estimate(KEY, episodes, rewards)


def test_turns_of_one_round_are_compared_by_role_with_those_of_the_same_round():
    episodes = [
        played(0, 1.0, "abab", ends=(2,)),
        played(1, 0.0, "abab", ends=(2,)),
        played(2, 1.0, "ab", continues=(1, 2)),
    ]
    found = judged(episodes)
    assert found[0] == pytest.approx([0.25] * 4)
    assert found[1] == pytest.approx([-0.25, -0.25, -0.5, -0.5])
    assert found[2] == pytest.approx([0.5, 0.5])


def test_who_speaks_only_where_others_were_continued_is_compared_there_alone():
    episodes = [played(0, 0.0, "a"), played(1, 0.0, "aa"), played(2, 1.0, "b", continues=(1, 1))]
    assert judged(episodes)[2] == [0.5]


def test_members_in_another_order_have_the_same_advantages():
    chances = random.Random(1)
    episodes = [played(n, float(chances.random() < 0.5), "abab") for n in range(3)]
    episodes += [played(n, float(chances.random() < 0.5), "ab", continues=(n % 3, 2)) for n in range(3, 8)]
    found = {one.member: own for one, own in zip(episodes, judged(episodes, divide_by_std=True), strict=True)}
    for _ in range(5):
        chances.shuffle(episodes)
        again = judged(episodes, divide_by_std=True)
        assert {one.member: own for one, own in zip(episodes, again, strict=True)} == found


def test_whoever_goes_through_a_turn_it_is_in_one_row_so_paths_weighted_by_their_leaves_count_it_once():
    episodes = [played(0, 1.0, "aaaa"), played(1, 0.0, "aaaa")]
    episodes += [played(n, 1.0, "a" * (4 - turns), continues=(1, turns)) for n, turns in enumerate((1, 1, 3), 2)]
    paths = {}
    for leaf in episodes:
        shared = leaf.branch.turns if leaf.branch.root >= 0 else 0
        own = [(leaf.member, n) for n in range(len(leaf.samples))]
        for edge in [*((leaf.branch.root, n) for n in range(shared)), *own]:
            paths.setdefault(edge, []).append(leaf.member)
    weights = {edge: sum(1 / len(through) for _ in through) for edge, through in paths.items()}
    assert weights == dict.fromkeys(((one.member, n) for one in episodes for n in range(len(one.samples))), 1.0)
    assert [len(own) for own in judged(episodes)] == [len(one.samples) for one in episodes]
