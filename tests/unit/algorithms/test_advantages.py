import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.filters import GROUP_FILTERS, Signal, signal_of
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.rewards import matched_returns, row_rewards
from flexmarl.contracts.specification.advantages import ADVANTAGE, GrpoOptions
from flexmarl.contracts.specification.task_choice import GROUP_FILTER
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef

KEY = GROUP_KEYS["episode_group"]


def estimate(name, spec, key, episodes):
    made = ADVANTAGES.make(spec if spec.type == name else like(name, **spec.model_dump(exclude={"type"})))
    return made.estimate(key, episodes, [made.rewards(episode) for episode in episodes])


def like(name, **settings):
    """Options of an advantage with those of some settings that it has."""
    known = ADVANTAGE.variants()[name].model_fields
    return ADVANTAGE.options(name, **{key: value for key, value in settings.items() if key in known})


def grpo(spec, key, episodes):
    return estimate("grpo", spec, key, episodes)


def rloo(spec, key, episodes):
    return estimate("rloo", spec, key, episodes)


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
    assert grpo(ADVANTAGE.options(), KEY, [episode(0, 1.0), episode(1, 0.0), episode(2, 0.5)]) == [[0.5], [-0.5], [0.0]]


def test_division_by_the_population_standard_deviation():
    values = grpo(ADVANTAGE.options(divide_by_std=True), KEY, [episode(0, 2.0), episode(1, 0.0)])
    assert values[0][0] == pytest.approx(1.0, abs=2e-6)
    assert values[1][0] == pytest.approx(-1.0, abs=2e-6)


@pytest.mark.parametrize("divide", [True, False])
def test_equal_rewards_and_lone_members_give_exactly_zero(divide):
    spec = ADVANTAGE.options(divide_by_std=divide)
    assert grpo(spec, KEY, [episode(0, 0.1), episode(1, 0.1), episode(2, 0.1)]) == [[0.0]] * 3
    assert grpo(spec, KEY, [episode(0, 0.7)]) == [[0.0]]
    assert grpo(spec, KEY, []) == []


def test_a_role_is_compared_only_with_episodes_in_which_it_acted():
    both = (("guesser", 0, 0.0), ("hinter", 0, 0.0))
    episodes = [episode(0, 1.0, samples=both[:1]), episode(1, 0.4, samples=both), episode(2, 0.0, samples=both)]
    values = grpo(ADVANTAGE.options(), KEY, episodes)
    assert values[1][1] == pytest.approx(0.2)
    assert values[2][1] == pytest.approx(-0.2)
    assert values[0][0] == pytest.approx(1.0 - 1.4 / 3)


def test_an_episode_counts_once_however_often_its_role_acted():
    often = (("solver", 0, 0.0), ("solver", 1, 0.0), ("solver", 2, 0.0))
    values = grpo(ADVANTAGE.options(), KEY, [episode(0, 1.0, samples=often), episode(1, 0.0, samples=often[:1])])
    assert values == [[0.5, 0.5, 0.5], [-0.5]]


def test_team_share_mixes_team_and_own_score():
    spec = ADVANTAGE.options(team_share=0.25)
    episodes = [episode(0, 1.0, {"solver": 0.0}), episode(1, 0.0, {"solver": 1.0})]
    assert grpo(spec, KEY, episodes) == [[-0.25], [0.25]]
    assert grpo(ADVANTAGE.options(team_share=1.0), KEY, episodes) == [[0.5], [-0.5]]


def test_per_turn_compares_discounted_rewards_to_go_of_the_same_turn():
    spec = ADVANTAGE.options(per_turn=True, gamma=0.5)
    long = episode(0, 0.0, samples=(("cook_1", 0, 1.0), ("cook_2", 0, 0.0), ("cook_1", 1, 2.0)))
    short = episode(1, 0.0, samples=(("cook_1", 0, 0.0), ("cook_2", 0, 4.0)))
    values = grpo(spec, KEY, [long, short])
    assert values == [[1.0, -2.0, 0.0], [-1.0, 2.0]]


def test_reward_to_go_does_not_depend_on_the_order_of_rows():
    spec = ADVANTAGE.options(per_turn=True, gamma=0.9)
    rows = (("a", 0, 1.0), ("a", 1, 2.0), ("a", 2, 3.0))
    forward = grpo(spec, KEY, [episode(0, 0, samples=rows), episode(1, 0, samples=(("a", 0, 0.0),))])
    backward = grpo(spec, KEY, [episode(0, 0, samples=rows[::-1]), episode(1, 0, samples=(("a", 0, 0.0),))])
    assert forward[0] == backward[0][::-1]


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="finite"):
        grpo(ADVANTAGE.options(), KEY, [episode(0, math.nan), episode(1, 0.0)])


scores = st.floats(-100, 100, allow_nan=False)
groups = st.lists(
    st.tuples(scores, scores, st.lists(st.tuples(st.sampled_from(["a", "b"]), scores), max_size=4)), max_size=6
)
specs = st.builds(
    GrpoOptions,
    divide_by_std=st.booleans(),
    per_turn=st.booleans(),
    gamma=st.sampled_from([0.5, 1.0]),
    team_share=st.sampled_from([0.0, 0.5, 1.0]),
    baseline_over=st.sampled_from(["episodes", "rows"]),
    turn_rewards=st.sampled_from(["own", "joint"]),
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
@pytest.mark.parametrize("key", sorted(GROUP_KEYS))
@settings(max_examples=40, deadline=None)
@given(rows=groups, spec=specs, order=st.randoms(use_true_random=False))
def test_every_estimator_is_deterministic_aligned_and_follows_permutations(name, key, rows, spec, order):
    key, episodes = GROUP_KEYS[key], build(rows)
    values = estimate(name, spec, key, episodes)
    assert values == estimate(name, spec, key, episodes)
    assert [len(v) for v in values] == [len(e.samples) for e in episodes]
    assert all(math.isfinite(x) for v in values for x in v)
    shuffled = list(range(len(episodes)))
    order.shuffle(shuffled)
    assert estimate(name, spec, key, [episodes[i] for i in shuffled]) == [values[i] for i in shuffled]


def test_leave_one_out_judges_a_row_by_the_others():
    rewards = (1.0, 0.0, 0.0, 1.0, 1.0)
    values = rloo(ADVANTAGE.options(), KEY, [episode(i, r) for i, r in enumerate(rewards)])
    assert [v for own in values for v in own] == pytest.approx([0.5, -0.75, -0.75, 0.5, 0.5])
    assert rloo(ADVANTAGE.options(), KEY, [episode(0, 0.7)]) == [[0.0]]
    assert rloo(ADVANTAGE.options(), KEY, [episode(i, 0.1) for i in range(3)]) == [[0.0]] * 3


def test_leave_one_out_of_a_team_leaves_the_whole_episode_out():
    both = (("a", 0, 0.0), ("b", 0, 0.0))
    episodes = [episode(i, 0.0, {"a": a, "b": b}, both) for i, (a, b) in enumerate(((1.0, 3.0), (0.0, 10.0)))]
    spec = ADVANTAGE.options(team_share=0.0)
    assert rloo(spec, GROUP_KEYS["team"], episodes) == [[1.0 - 5.0, 3.0 - 5.0], [0.0 - 2.0, 10.0 - 2.0]]


def test_agents_of_unlike_scales_are_normalised_each_by_its_own():
    """One baseline for the team leaves an agent's second moment at (own variance + (own mean - mean)^2) / variance."""
    both = (("a", 0, 0.0), ("b", 0, 0.0))
    rewards = [(1.0, 100.0), (0.0, 140.0), (1.0, 60.0), (0.0, 100.0)]
    episodes = [episode(i, 0.0, {"a": a, "b": b}, both) for i, (a, b) in enumerate(rewards)]
    spec = ADVANTAGE.options(team_share=0.0, divide_by_std=True)
    own, common = (grpo(spec, GROUP_KEYS[name], episodes) for name in ("episode_group", "team"))
    for place in (0, 1):
        assert sum(row[place] ** 2 for row in own) / 4 == pytest.approx(1.0, abs=1e-4)
    values = [value for row in rewards for value in row]
    mean = sum(values) / 8
    variance = sum((value - mean) ** 2 for value in values) / 8
    assert sum(row[0] ** 2 for row in common) / 4 == pytest.approx((0.25 + (0.5 - mean) ** 2) / variance, rel=1e-4)


def test_a_baseline_over_rows_counts_every_call():
    often = (("solver", 0, 0.0), ("solver", 1, 0.0), ("solver", 2, 0.0))
    episodes = [episode(0, 1.0, samples=often), episode(1, 0.0, samples=often[:1])]
    assert grpo(ADVANTAGE.options(baseline_over="rows"), KEY, episodes) == [[0.25, 0.25, 0.25], [-0.75]]


def test_agent_and_turn_compare_only_episodes_that_came_that_far():
    turns = (("solver", 0, 0.0), ("solver", 1, 0.0))
    episodes = [episode(0, 1.0, samples=turns), episode(1, 0.5, samples=turns), episode(2, 0.0, samples=turns[:1])]
    assert grpo(ADVANTAGE.options(), GROUP_KEYS["agent_turn"], episodes) == [[0.5, 0.25], [0.0, -0.25], [-0.5]]


def test_joint_rewards_of_turns_are_the_whole_teams():
    spec = ADVANTAGE.options(per_turn=True, turn_rewards="joint", gamma=0.5)
    samples = (("a", 0, 1.0), ("b", 0, 2.0), ("a", 1, 4.0))
    assert row_rewards(spec, episode(0, 0.0, samples=samples)) == [5.0, 5.0, 4.0]
    assert row_rewards(spec, episode(0, 0.0, samples=samples[::-1])) == [4.0, 5.0, 5.0]
    values = grpo(spec, GROUP_KEYS["team"], [episode(0, 0, samples=samples), episode(1, 0, samples=samples[:2])])
    assert values == [[1.0, 1.0, 0.0], [-1.0, -1.0]]


def test_signal_tells_useful_easy_and_hard_apart():
    easy = [episode(0, 1.0, solved=True), episode(1, 1.0, solved=True)]
    hard = [episode(0, 0.0), episode(1, 0.0)]
    assert signal_of(easy, [[0.0], [0.0]]) is Signal.EASY
    assert signal_of(hard, [[0.0], [0.0]]) is Signal.HARD
    assert signal_of(easy, [[0.5], [-0.5]]) is Signal.USEFUL
    assert signal_of([], []) is Signal.HARD


def test_filters_decide_by_the_signal():
    keeps = {
        name: [s for s in Signal if GROUP_FILTERS.make(GROUP_FILTER.options(name)).keeps(s)]
        for name in GROUP_FILTERS.names()
    }
    useful = [Signal.USEFUL]
    assert keeps == {"none": list(Signal), "drop_zero_variance": useful, "dynamic_sampling": useful}
    assert [name for name in GROUP_FILTERS.names() if GROUP_FILTERS.make(GROUP_FILTER.options(name)).draws_again] == [
        "dynamic_sampling"
    ]


def turns(*rewards, role="solver"):
    return tuple((role, number, reward) for number, reward in enumerate(rewards))


def two_level(episodes, key=KEY, **options):
    return estimate("two_level", ADVANTAGE.options("two_level", **options), key, episodes)


@pytest.mark.parametrize(("counts_last", "expected"), [(True, [1.525, 1.05, 0.1, 1.0]), (False, [1.5, 1.0, 0.1, 1.0])])
def test_a_return_ends_with_the_first_turn_without_the_full_reward(counts_last, expected):
    """UI-S1's paper and its authors' program, with gamma .5."""
    options = ADVANTAGE.options("two_level", counts_last=counts_last)
    found = matched_returns(options, episode(0, 0.0, samples=turns(1.0, 1.0, 0.1, 1.0)))
    assert found == pytest.approx(expected, abs=1e-12)


def test_returns_of_roles_are_their_own():
    options = ADVANTAGE.options("two_level")
    both = (*turns(1.0, 1.0), *turns(0.0, 0.5, role="writer"))
    assert matched_returns(options, episode(0, 0.0, samples=both)) == [1.5, 1.0, 0.0, 0.5]


def test_an_episode_and_its_turns_are_compared_apart_and_added_up():
    """Means and deviations by hand: of the scores 1 and .1, of the returns 1.5 and .1 at turn 0; turn 1 has no peer."""
    group = [episode(0, 1.0, samples=turns(1.0, 1.0)), episode(1, 0.1, samples=turns(0.1))]
    plain = two_level(group, divide_by_std=False, step_weight=2.0)
    assert plain == [pytest.approx([0.45 + 2.0 * 0.7, 0.45]), pytest.approx([-0.45 - 2.0 * 0.7])]
    divided = two_level(group)
    assert divided == [pytest.approx([2.0, 1.0], abs=1e-5), pytest.approx([-2.0], abs=1e-5)]
    alone = two_level(group, divide_by_std=False, leave_one_out=True)
    assert alone == [pytest.approx([0.9 + 1.4, 0.9]), pytest.approx([-0.9 - 1.4])]


SCORES = st.floats(min_value=0.0, max_value=1.0)
GROUPS_OF_TURNS = st.lists(st.lists(SCORES, min_size=1, max_size=4), min_size=1, max_size=6)


@given(GROUPS_OF_TURNS, st.booleans())
@settings(max_examples=80, deadline=None)
def test_without_weight_of_turns_it_is_grpo_to_the_bit(rewards, divide):
    group = [episode(n, sum(own) / len(own), samples=turns(*own)) for n, own in enumerate(rewards)]
    plain = grpo(ADVANTAGE.options(divide_by_std=divide), KEY, group)
    assert two_level(group, step_weight=0.0, divide_by_std=divide) == plain


@given(st.lists(SCORES, min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_of_one_turn_both_parts_are_the_same(scores):
    """Without patches and with one turn an episode is its turn: grpo, as often as the parts weigh."""
    group = [episode(n, score, samples=turns(score)) for n, score in enumerate(scores)]
    plain = grpo(ADVANTAGE.options(divide_by_std=True), KEY, group)
    assert two_level(group) == [[2.0 * value for value in own] for own in plain]


def test_groups_that_differ_too_little_teach_nothing():
    narrow = [episode(0, 0.5, samples=turns(1.0)), episode(1, 0.4, samples=turns(0.1))]
    assert two_level(narrow, least_std=0.3) == [[0.0], [0.0]]
    wide = [episode(0, 1.0, samples=turns(1.0)), episode(1, 0.1, samples=turns(0.1))]
    assert two_level(wide, least_std=0.3) == two_level(wide)
    assert signal_of(narrow, two_level(narrow, least_std=0.3)) is Signal.HARD
