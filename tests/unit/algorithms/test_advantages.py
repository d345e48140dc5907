import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.algorithms.advantages import ADVANTAGES, grpo
from flexmarl.algorithms.filters import GROUP_FILTERS, Signal, signal_of
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.contracts.spec.algorithm import Advantage
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef

KEY = GROUP_KEYS.get("episode_group")


def episode(member, team, scores=None, samples=(("solver", 0, 0.0),), solved=False):
    return EpisodeOutcome(
        member=member,
        attempt=1,
        status=EpisodeStatus.FINISHED,
        team_score=team,
        scores=scores or {},
        solved=solved,
        samples=tuple(SampleRef(role=r, turn=t, tokens=3, reward=w) for r, t, w in samples),
    )


def test_a_group_is_centred_on_its_mean():
    assert grpo(Advantage(), KEY, [episode(0, 1.0), episode(1, 0.0), episode(2, 0.5)]) == [[0.5], [-0.5], [0.0]]


def test_division_by_the_population_standard_deviation():
    values = grpo(Advantage(divide_by_std=True), KEY, [episode(0, 2.0), episode(1, 0.0)])
    assert values[0][0] == pytest.approx(1.0, abs=2e-6)
    assert values[1][0] == pytest.approx(-1.0, abs=2e-6)


@pytest.mark.parametrize("divide", [True, False])
def test_equal_rewards_and_lone_members_give_exactly_zero(divide):
    spec = Advantage(divide_by_std=divide)
    assert grpo(spec, KEY, [episode(0, 0.1), episode(1, 0.1), episode(2, 0.1)]) == [[0.0]] * 3
    assert grpo(spec, KEY, [episode(0, 0.7)]) == [[0.0]]
    assert grpo(spec, KEY, []) == []


def test_a_role_is_compared_only_with_episodes_in_which_it_acted():
    both = (("guesser", 0, 0.0), ("hinter", 0, 0.0))
    episodes = [episode(0, 1.0, samples=both[:1]), episode(1, 0.4, samples=both), episode(2, 0.0, samples=both)]
    values = grpo(Advantage(), KEY, episodes)
    assert values[1][1] == pytest.approx(0.2)
    assert values[2][1] == pytest.approx(-0.2)
    assert values[0][0] == pytest.approx(1.0 - 1.4 / 3)


def test_an_episode_counts_once_however_often_its_role_acted():
    often = (("solver", 0, 0.0), ("solver", 1, 0.0), ("solver", 2, 0.0))
    values = grpo(Advantage(), KEY, [episode(0, 1.0, samples=often), episode(1, 0.0, samples=often[:1])])
    assert values == [[0.5, 0.5, 0.5], [-0.5]]


def test_team_share_mixes_team_and_own_score():
    spec = Advantage(team_share=0.25)
    episodes = [episode(0, 1.0, {"solver": 0.0}), episode(1, 0.0, {"solver": 1.0})]
    assert grpo(spec, KEY, episodes) == [[-0.25], [0.25]]
    assert grpo(Advantage(team_share=1.0), KEY, episodes) == [[0.5], [-0.5]]


def test_per_turn_compares_discounted_rewards_to_go_of_the_same_turn():
    spec = Advantage(per_turn=True, gamma=0.5)
    long = episode(0, 0.0, samples=(("cook_1", 0, 1.0), ("cook_2", 0, 0.0), ("cook_1", 1, 2.0)))
    short = episode(1, 0.0, samples=(("cook_1", 0, 0.0), ("cook_2", 0, 4.0)))
    values = grpo(spec, KEY, [long, short])
    assert values == [[1.0, -2.0, 0.0], [-1.0, 2.0]]


def test_reward_to_go_does_not_depend_on_the_order_of_rows():
    spec = Advantage(per_turn=True, gamma=0.9)
    rows = (("a", 0, 1.0), ("a", 1, 2.0), ("a", 2, 3.0))
    forward = grpo(spec, KEY, [episode(0, 0, samples=rows), episode(1, 0, samples=(("a", 0, 0.0),))])
    backward = grpo(spec, KEY, [episode(0, 0, samples=rows[::-1]), episode(1, 0, samples=(("a", 0, 0.0),))])
    assert forward[0] == backward[0][::-1]


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="finite"):
        grpo(Advantage(), KEY, [episode(0, math.nan), episode(1, 0.0)])


scores = st.floats(-100, 100, allow_nan=False)
groups = st.lists(
    st.tuples(scores, scores, st.lists(st.tuples(st.sampled_from(["a", "b"]), scores), max_size=4)), max_size=6
)
specs = st.builds(
    Advantage,
    divide_by_std=st.booleans(),
    per_turn=st.booleans(),
    gamma=st.sampled_from([0.5, 1.0]),
    team_share=st.sampled_from([0.0, 0.5, 1.0]),
)


def build(rows):
    result = []
    for member, (team, own, turns) in enumerate(rows):
        seen = {"a": 0, "b": 0}
        samples = []
        for role, reward in turns:
            samples.append((role, seen[role], reward))
            seen[role] += 1
        result.append(episode(member, team, {"a": own}, tuple(samples)))
    return result


@pytest.mark.parametrize("name", ADVANTAGES.names())
@settings(max_examples=60, deadline=None)
@given(rows=groups, spec=specs, order=st.randoms(use_true_random=False))
def test_every_estimator_is_deterministic_aligned_and_follows_permutations(name, rows, spec, order):
    estimate = ADVANTAGES.get(name)
    episodes = build(rows)
    values = estimate(spec, KEY, episodes)
    assert values == estimate(spec, KEY, episodes)
    assert [len(v) for v in values] == [len(e.samples) for e in episodes]
    assert all(math.isfinite(x) for v in values for x in v)
    shuffled = list(range(len(episodes)))
    order.shuffle(shuffled)
    assert estimate(spec, KEY, [episodes[i] for i in shuffled]) == [values[i] for i in shuffled]


def test_signal_tells_useful_easy_and_hard_apart():
    easy = [episode(0, 1.0, solved=True), episode(1, 1.0, solved=True)]
    hard = [episode(0, 0.0), episode(1, 0.0)]
    assert signal_of(easy, [[0.0], [0.0]]) is Signal.EASY
    assert signal_of(hard, [[0.0], [0.0]]) is Signal.HARD
    assert signal_of(easy, [[0.5], [-0.5]]) is Signal.USEFUL
    assert signal_of([], []) is Signal.HARD


def test_filters_decide_by_the_signal():
    keeps = {name: [s for s in Signal if GROUP_FILTERS.get(name)(s)] for name in GROUP_FILTERS.names()}
    assert keeps == {"none": list(Signal), "drop_zero_variance": [Signal.USEFUL]}
