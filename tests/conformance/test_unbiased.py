"""On games small enough to enumerate, the mean gradient is the true one within three standard errors.

A policy says one or two words; its reward is a table. Estimators that claim to be unbiased are held against the
enumerated gradient, those that are known to shrink it by their own share of the baseline against that, and every loss
with every estimator is shown to learn.
"""

import itertools
import math

import pytest
import torch

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.algorithms.group_keys import GROUP_KEYS
from flexmarl.algorithms.losses import Rows
from flexmarl.algorithms.rewards import row_rewards
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from workers.training.losses import LOSSES
from workers.training.objective import Objective, total

WORDS, MEMBERS, GROUPS = 3, 4, 3000
SUM = {"aggregation": "seq_mean_token_sum"}


def reward_table(words: int, seed: int = 0) -> torch.Tensor:
    return torch.randn([WORDS] * words, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.7


def logits_of(words: int, seed: int) -> torch.Tensor:
    """One table of logits per word said: [words, WORDS]."""
    return 0.8 * torch.randn(words, WORDS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def enumerated(logits: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
    """The gradient of the expected reward, by adding up every reply there is."""
    own = logits.clone().requires_grad_()
    probabilities = own.softmax(-1)
    expected = torch.zeros((), dtype=torch.float64)
    for reply in itertools.product(range(WORDS), repeat=len(logits)):
        chance = torch.stack([probabilities[place, word] for place, word in enumerate(reply)]).prod()
        expected = expected + chance * rewards[reply]
    (gradient,) = torch.autograd.grad(expected, own)
    return gradient


def said(logits: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Replies [count, words]."""
    made = torch.Generator().manual_seed(seed)
    return torch.stack([torch.multinomial(p, count, replacement=True, generator=made) for p in logits.softmax(-1)], 1)


def advantages_of(name: str, key: str, scores: torch.Tensor, roles: int = 1) -> torch.Tensor:
    """Advantages [episodes, roles] of groups of MEMBERS, by the plug-ins themselves; all roles earn the score."""
    advantage, row_key, found = ADVANTAGES.make(ADVANTAGE.options(name)), GROUP_KEYS[key], []
    for group in scores.split(MEMBERS):
        episodes = [
            EpisodeOutcome(
                member=member,
                attempt=1,
                status=EpisodeStatus.FINISHED,
                team_score=score,
                samples=tuple(SampleRef(role=f"r{n}", turn=0, tokens=1, reward=score) for n in range(roles)),
            )
            for member, score in enumerate(group.tolist())
        ]
        found += advantage.estimate(row_key, episodes, [row_rewards(advantage.options, one) for one in episodes])
    return torch.tensor(found, dtype=torch.float64)


def group_gradients(
    objective: Objective, logits: torch.Tensor, replies: torch.Tensor, advantages: torch.Tensor, sampler: torch.Tensor
) -> torch.Tensor:
    """The ascent direction of every group by itself: [groups, words * WORDS]; `sampler` are the logits that spoke."""
    leaf = logits.expand(len(replies), -1, -1).clone().requires_grad_()
    logprobs = leaf.log_softmax(-1).gather(2, replies.unsqueeze(2)).squeeze(2)
    behaviour = sampler.log_softmax(-1).expand(len(replies), -1, -1).gather(2, replies.unsqueeze(2)).squeeze(2)
    rows = Rows.masked(logprobs, behaviour, torch.ones_like(behaviour), advantages, torch.zeros_like(behaviour))
    coefficient, share = objective.aggregate(replies.shape[1])
    coefficients = torch.full((len(replies), 1), coefficient, dtype=torch.float64)
    value, _ = total(rows, torch.zeros_like(behaviour), coefficients, objective, 0.0)
    value.backward()
    return -leaf.grad.view(-1, MEMBERS, logits.numel()).sum(1) / (share * MEMBERS)


def assert_unbiased(gradients: torch.Tensor, truth: torch.Tensor, scale: float = 1.0) -> None:
    mean, error = gradients.mean(0), gradients.std(0) / len(gradients) ** 0.5
    distance = (mean - scale * truth.flatten()).abs() / error
    assert distance.max() < 3.0, distance
    assert (truth.flatten().abs() > 8.0 * error).any(), "too few groups to tell the truth from nothing"


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize(
    ("name", "scale"),
    [("reinforce", 1.0), ("rloo", 1.0), ("grpo", (MEMBERS - 1) / MEMBERS)],
)
def test_a_bandits_gradient(name: str, scale: float, words: int):
    """The mean of all, the row itself among them, is a baseline that takes its share of the gradient away."""
    logits, rewards = logits_of(words, 1), reward_table(words)
    replies = said(logits, GROUPS * MEMBERS, 2)
    advantages = advantages_of(name, "episode_group", rewards[tuple(replies.T)])
    gradients = group_gradients(Objective.of(LOSS.options(**SUM)), logits, replies, advantages, logits)
    assert_unbiased(gradients, enumerated(logits, rewards), scale)


@pytest.mark.parametrize(
    ("loss", "algorithm"),
    [
        ({"type": "policy_gradient"}, {"correction": {"type": "truncated_importance", "limit": 1000.0}}),
        (
            {"type": "policy_gradient"},
            {"correction": {"type": "masked_importance", "limit": 1000.0, "floor": 0.0}},
        ),
        ({"type": "ppo_clip", "clip_low": 1.0, "clip_high": 10.0}, {}),
        ({"type": "cispo", "clip_low": 1.0, "clip_high": 10.0}, {}),
        ({"type": "decoupled_ppo", "clip_low": 1.0, "clip_high": 10.0, "weight_limit": 1000.0}, {}),
    ],
)
def test_weights_of_other_samplers_are_made_up_for(loss: dict, algorithm: dict):
    logits, rewards, sampler = logits_of(1, 1), reward_table(1), logits_of(1, 5)
    replies = said(sampler, GROUPS * MEMBERS, 3)
    advantages = advantages_of("reinforce", "episode_group", rewards[tuple(replies.T)])
    settings = LOSS.options(**loss, **SUM)
    objective = Objective.of(settings, AlgorithmSpec(loss=settings, **algorithm))
    truth = enumerated(logits, rewards)
    assert_unbiased(group_gradients(objective, logits, replies, advantages, sampler), truth)
    uncorrected = group_gradients(Objective.of(LOSS.options(**SUM)), logits, replies, advantages, sampler)
    error = uncorrected.std(0) / GROUPS**0.5
    assert ((uncorrected.mean(0) - truth.flatten()).abs() / error).max() > 3.0


def test_whole_replies_of_other_samplers_are_made_up_for():
    logits, rewards, sampler = logits_of(2, 1), reward_table(2), logits_of(2, 5)
    replies = said(sampler, GROUPS * MEMBERS, 4)
    advantages = advantages_of("reinforce", "episode_group", rewards[tuple(replies.T)])
    settings, truth = LOSS.options(**SUM), enumerated(logits, rewards)
    made_up = {"correction": {"type": "truncated_importance", "limit": 1000.0, "level": "sequence"}}
    objective = Objective.of(settings, AlgorithmSpec(loss=settings, **made_up))
    assert_unbiased(group_gradients(objective, logits, replies, advantages, sampler), truth)


@pytest.mark.parametrize(
    ("name", "key", "scale"),
    [
        ("reinforce", "episode_group", 1.0),
        ("rloo", "episode_group", 1.0),
        ("rloo", "team", 1.0),
        ("grpo", "team", (MEMBERS - 1) / MEMBERS),
    ],
)
def test_both_agents_of_a_matrix_game(name: str, key: str, scale: float):
    """Each agent's gradient of the common reward, its partner being part of the chance it meets."""
    both, rewards = logits_of(2, 6), reward_table(2, 7)
    replies = said(both, GROUPS * MEMBERS, 8)
    advantages = advantages_of(name, key, rewards[tuple(replies.T)], roles=2)
    truth = enumerated(both, rewards)
    for agent in (0, 1):
        own, words = both[agent : agent + 1], replies[:, agent : agent + 1]
        found = group_gradients(Objective.of(LOSS.options(**SUM)), own, words, advantages[:, agent : agent + 1], own)
        assert_unbiased(found, truth[agent : agent + 1], scale)


@pytest.mark.parametrize(("name", "leaks"), [("grpo", True), ("rloo", False)])
def test_one_baseline_of_agents_with_rewards_of_their_own(name: str, leaks: bool):
    """The mean of a team holds what a partner earned in the same episode, which depends on what is judged.

    So each agent loses its share of the gradient of all rewards; where its episode is left out, it does not.
    """
    both, tables = logits_of(2, 6), (reward_table(2, 7), reward_table(2, 11))
    replies = said(both, GROUPS * MEMBERS, 12)
    earned = torch.stack([table[tuple(replies.T)] for table in tables], 1)
    advantage, key, found = ADVANTAGES.make(ADVANTAGE.options(name, team_share=0.0)), GROUP_KEYS["team"], []
    for group in earned.split(MEMBERS):
        episodes = [
            EpisodeOutcome(
                member=member,
                attempt=1,
                status=EpisodeStatus.FINISHED,
                scores={"r0": own[0], "r1": own[1]},
                samples=(SampleRef(role="r0", turn=0, tokens=1), SampleRef(role="r1", turn=0, tokens=1)),
            )
            for member, own in enumerate(group.tolist())
        ]
        found += advantage.estimate(key, episodes, [row_rewards(advantage.options, one) for one in episodes])
    advantages = torch.tensor(found, dtype=torch.float64)
    for agent in (0, 1):
        own, words = both[agent : agent + 1], replies[:, agent : agent + 1]
        alone = enumerated(both, tables[agent])[agent]
        shared = alone - enumerated(both, tables[0] + tables[1])[agent] / (2 * MEMBERS)
        gradients = group_gradients(
            Objective.of(LOSS.options(**SUM)), own, words, advantages[:, agent : agent + 1], own
        )
        assert_unbiased(gradients, shared if leaks else alone)
        other = (gradients.mean(0) - (alone if leaks else shared)).abs() / (gradients.std(0) / GROUPS**0.5)
        assert other.max() > 3.0


@pytest.mark.parametrize("members", [2, 4])
def test_turns_that_no_other_episode_reached(members: int):
    """A turn without a peer has the advantage 0, so a rare turn learns by the chance that another episode reaches it.

    An agent ends or goes on, and says a word if it does. All outcomes of a group are added up.
    """
    ends, says = torch.tensor([[0.3, -0.9], [0.2, 0.7]], dtype=torch.float64)
    logits = torch.stack([ends, says])
    chances, (end, first, second) = logits.softmax(-1), (0.4, 1.0, -0.5)
    outcomes = {(0,): end, (1, 0): first, (1, 1): second}
    advantage, key = ADVANTAGES.make(ADVANTAGE.options("rloo")), GROUP_KEYS["agent_turn"]
    expected = torch.zeros_like(logits)
    for said_by in itertools.product(outcomes, repeat=members):
        chance = 1.0
        for words in said_by:
            for turn, word in enumerate(words):
                chance *= float(chances[turn, word])
        episodes = [
            EpisodeOutcome(
                member=member,
                attempt=1,
                status=EpisodeStatus.FINISHED,
                team_score=outcomes[words],
                samples=tuple(SampleRef(role="r", turn=turn, tokens=1) for turn in range(len(words))),
            )
            for member, words in enumerate(said_by)
        ]
        values = advantage.estimate(key, episodes, [row_rewards(advantage.options, one) for one in episodes])
        for words, own in zip(said_by, values, strict=True):
            for turn, (word, value) in enumerate(zip(words, own, strict=True)):
                score = torch.nn.functional.one_hot(torch.tensor(word), 2) - chances[turn]
                expected[turn] += chance * value * score / members
    leaf = logits.clone().requires_grad_()
    go = leaf.softmax(-1)
    worth = go[0, 0] * end + go[0, 1] * (go[1, 0] * first + go[1, 1] * second)
    (truth,) = torch.autograd.grad(worth, leaf)
    met = 1.0 - (1.0 - float(chances[0, 1])) ** (members - 1)
    assert torch.allclose(expected[0], truth[0], atol=1e-12)
    assert torch.allclose(expected[1], met * truth[1], atol=1e-12)
    assert met < 0.9


def _logged_values(played: torch.Tensor, **options: object) -> torch.Tensor:
    """Advantages [groups, MEMBERS, 2] of two logged turns that end at the first wrong word, which is any but 0."""
    advantage = ADVANTAGES.make(ADVANTAGE.options("two_level", gamma=1.0, divide_by_std=False, **options))
    key, found = GROUP_KEYS["episode_group"], []
    for group in played.tolist():
        episodes = []
        for member, words in enumerate(group):
            rewards = [float(word == 0) for word in words]
            reached = rewards[: 2 if rewards[0] else 1]
            samples = tuple(SampleRef(role="r", turn=n, tokens=1, reward=r) for n, r in enumerate(reached))
            episodes.append(
                EpisodeOutcome(
                    member=member, attempt=1, status=EpisodeStatus.FINISHED, team_score=sum(reached), samples=samples
                )
            )
        values = advantage.estimate(key, episodes, [row_rewards(advantage.options, one) for one in episodes])
        found.append([[*own, *[0.0] * (2 - len(own))] for own in values])
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("step_weight", [0.0, 1.0])
def test_two_levels_of_logged_turns(step_weight: float, leave_one_out: bool):
    """Without patches, discount and deviation both parts follow the gradient of the expected score.

    The part of episodes keeps all of it where the others alone are the baseline, (n - 1) / n of it else. The part of
    turns keeps of a turn the mean share of those that reached it: 1 or 0 with the others alone, (m - 1) / m of m.
    """
    logits = logits_of(2, 1)
    replies = said(logits, GROUPS * MEMBERS, 2)
    values = _logged_values(
        replies.view(GROUPS, MEMBERS, 2), step_weight=step_weight, leave_one_out=leave_one_out
    ).view(-1, 2)
    scores = torch.nn.functional.one_hot(replies, WORDS).double() - logits.softmax(-1)
    gradients = (values.unsqueeze(2) * scores).view(GROUPS, MEMBERS, -1).mean(1)

    own = logits.clone().requires_grad_()
    right = own.softmax(-1)[:, 0]
    (truth,) = torch.autograd.grad(right[0] + right[0] * right[1], own)
    first, reach = MEMBERS, float(right[0].detach())
    whole = 1.0 if leave_one_out else (MEMBERS - 1) / MEMBERS
    others = [  # how many other members reach the second turn, given that one does
        math.comb(first - 1, k) * reach**k * (1 - reach) ** (first - 1 - k) for k in range(first)
    ]
    kept = sum(chance * (float(k > 0) if leave_one_out else k / (k + 1)) for k, chance in enumerate(others))
    shares = torch.tensor([[whole + step_weight * whole], [whole + step_weight * kept]], dtype=torch.float64)
    assert_unbiased(gradients, shares * truth)


@pytest.mark.parametrize(
    ("estimator", "sampled_by", "unbiased"),
    [("k2", 1, True), ("k3", 1, False), ("k3_weighted", 1, True), ("k2", 5, False), ("k3_weighted", 5, True)],
)
def test_the_gradient_of_a_divergence(estimator: str, sampled_by: int, unbiased: bool):
    """With rewards of 0 all that is left is the penalty.

    k3 has another gradient than the divergence; that of k2 is right where the policy itself spoke, and that of k3 times
    the ratio wherever the words are from. As a value both forms of k3 are right.
    """
    logits, near, sampler = logits_of(1, 1), logits_of(1, 9), logits_of(1, sampled_by)
    own = logits.clone().requires_grad_()
    divergence = (own.softmax(-1) * (own.log_softmax(-1) - near.log_softmax(-1))).sum()
    (truth,) = torch.autograd.grad(-divergence, own)
    replies = said(sampler, GROUPS * MEMBERS, 10)
    leaf = logits.expand(len(replies), -1, -1).clone().requires_grad_()
    logprobs, reference, behaviour = (
        table.log_softmax(-1).expand(len(replies), -1, -1).gather(2, replies.unsqueeze(2)).squeeze(2)
        for table in (leaf, near, sampler)
    )
    nothing, ones = torch.zeros(len(replies), 1, dtype=torch.float64), torch.ones(len(replies), 1, dtype=torch.float64)
    objective = Objective.of(LOSS.options(), AlgorithmSpec(kl={"coefficient": 1.0, "estimator": estimator}))
    rows = Rows.masked(logprobs, behaviour, ones, nothing, nothing, reference)
    value, sums = total(rows, nothing, ones, objective, 0.0)
    value.backward()
    gradients = -leaf.grad.view(len(replies), -1)
    if unbiased:
        assert_unbiased(gradients, truth)
    else:
        distance = (gradients.mean(0) - truth.flatten()).abs() / (gradients.std(0) / len(gradients) ** 0.5)
        assert distance.max() > 3.0
    if estimator != "k2":
        assert sums.kl_reference / len(replies) == pytest.approx(divergence.item(), rel=0.05)


@pytest.mark.parametrize("loss", LOSSES.names())
@pytest.mark.parametrize("name", ADVANTAGES.names())
def test_every_loss_learns_with_every_advantage(name: str, loss: str):
    rewards, logits = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), torch.zeros(1, WORDS, dtype=torch.float64)
    objective = Objective.of(LOSS.options(type=loss))
    for step in range(60):
        replies = said(logits, 4 * MEMBERS, step)
        advantages = advantages_of(name, "episode_group", rewards[replies[:, 0]])
        whole = ADVANTAGES.make(ADVANTAGE.options(name)).normalise(advantages.flatten().tolist())
        advantages = torch.tensor(whole, dtype=torch.float64).view(-1, 1)
        logits = logits + group_gradients(objective, logits, replies, advantages, logits).mean(0).view(1, -1)
    assert float((logits.softmax(-1) * rewards).sum()) > 0.8
