"""The critic: golden figures, exact gradients on games that can be enumerated, and a state that goes on bit for bit."""

import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from tests.unit.orchestrator.fake_cluster import make_spec, started
from tests.unit.orchestrator.fake_parts import refusals
from tests.unit.workers.test_train_equality import EPOCH, SOURCE, WORDS, relative
from tests.unit.workers.test_train_suspend import resume, suspend
from tests.unit.workers.test_train_trainer import accumulate, create, make_trainer, step
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training import learner as learner_module
from workers.training.critic import Critic, unexpected
from workers.training.learner import Learner, Objective
from workers.training.wire import BindRequest, TrainRow

GAE = {"algorithm": {"advantage": {"type": "gae"}}}
SUM = LOSS.options(aggregation="seq_mean_token_sum")


def learner_of(seed: int = 4, **advantage: object) -> Learner:
    algorithm = AlgorithmSpec(loss=SUM, advantage=ADVANTAGE.options(type="gae", **advantage))
    weights = initial_weights(SOURCE, WORDS, seed=seed)
    return Learner(weights, architecture_of(SOURCE), Objective.of(SUM, algorithm), AdamW(), "fp64", epoch=EPOCH)


def plain(seed: int = 4) -> Learner:
    weights = initial_weights(SOURCE, WORDS, seed=seed)
    return Learner(weights, architecture_of(SOURCE), Objective.of(SUM), AdamW(), "fp64", epoch=EPOCH)


def row(prompt: list[int], response: list[int], earned: float, **more: object) -> TrainRow:
    allowed = np.array([1, 2, 3], "<i4")
    fields = {"weight": 1.0, "pair": "0:a", **more}
    return TrainRow(
        prompt=np.array(prompt, "<i4").tobytes(),
        response=np.array(response, "<i4").tobytes(),
        logprobs=np.full(len(response), -1.0, "<f4").tobytes(),
        allowed=allowed.tobytes(),
        temperature=1.0,
        advantages=[earned],
        **fields,
    )


def trained_critic(learner: Learner, seed: int = 1) -> None:
    """Any critic will do: an advantage must be right whatever it expects."""
    made = torch.Generator().manual_seed(seed)
    learner.critic.weights.copy_(torch.randn(learner.critic.weights.shape, generator=made, dtype=torch.float64))


def chances(learner: Learner, prompt: list[int], words: tuple[int, ...] = (1, 2, 3)) -> list[float]:
    """What the policy says with which chance, read off its own gradient's machinery."""
    found = []
    for word in words:
        _, stats = learner.gradient([row(prompt, [word], -1.0)], 0.0, Objective.of(SUM))
        found.append(math.exp(stats.loss_sum))
    assert sum(found) == pytest.approx(1.0)
    return found


def test_golden_advantages_and_targets():
    rows = [row([1], [1], earned, turn=turn) for turn, earned in enumerate((0.0, 0.0, 1.0))]
    values = [0.5, 0.6, 0.7]
    found = unexpected(rows, values, ADVANTAGE.options(type="gae", gae_lambda=0.95))
    assert found == pytest.approx([0.46575, 0.385, 0.3])
    whole = unexpected(rows, values, ADVANTAGE.options(type="gae", gae_lambda=1.0))
    assert whole == pytest.approx([0.5, 0.4, 0.3])
    one = unexpected(rows, values, ADVANTAGE.options(type="gae", gae_lambda=0.0, gamma=0.5))
    assert one == pytest.approx([0.5 * 0.6 - 0.5, 0.5 * 0.7 - 0.6, 0.3])


def test_episodes_roles_and_the_order_of_rows_are_kept_apart():
    rows = [
        row([1], [1], earned, turn=turn, member=member, pair=pair)
        for pair in ("0:a", "1:a")
        for member in range(3)
        for turn, earned in enumerate((0.3, -1.0 * member, 2.0))
    ]
    values = [0.1 * n for n in range(len(rows))]
    settings = ADVANTAGE.options(type="gae", gamma=0.9)
    whole = unexpected(rows, values, settings)
    order = random.Random(3).sample(range(len(rows)), len(rows))
    shuffled = unexpected([rows[n] for n in order], [values[n] for n in order], settings)
    assert shuffled == [whole[n] for n in order]
    for start in range(0, len(rows), 3):
        assert unexpected(rows[start : start + 3], values[start : start + 3], settings) == whole[start : start + 3]


def test_the_critic_moves_down_the_gradient_of_its_loss():
    critic = Critic(4, ADVANTAGE.options(type="gae", gae_lambda=1.0, critic_rate=0.1))
    read = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rows = [row([1], [1], float(n), member=n) for n in range(6)]
    _, judged = critic.judge(rows, read)
    weights = critic.weights.clone().requires_grad_()
    values = torch.cat((read, torch.ones(6, 1, dtype=torch.float64)), 1) @ weights
    loss = (values - torch.arange(6.0, dtype=torch.float64)).square().sum() / 2
    (gradient,) = torch.autograd.grad(loss, weights)
    assert judged.loss == pytest.approx(loss.item())
    assert torch.allclose(judged.gradient, gradient, rtol=1e-12, atol=1e-12)
    for _ in range(400):
        _, judged = critic.judge(rows, read)
        critic.gather(judged, first=True)
        critic.step()
    assert judged.loss < 0.2 * loss.item()


@pytest.mark.parametrize("length", [1, 2])
def test_on_an_enumerated_bandit_the_gradient_is_the_true_one_whatever_the_critic_expects(length: int):
    """Of two words, a critic that read anything of the reply would be wrong."""
    prompt, rewards = [4, 5], np.random.default_rng(length).standard_normal([3] * length)
    learner = learner_of(gae_lambda=0.95)
    trained_critic(learner)
    weighty = []
    for member, reply in enumerate(itertools.product((1, 2, 3), repeat=length)):
        chance = math.prod(chances(learner, [*prompt, *reply[:n]])[word - 1] for n, word in enumerate(reply))
        reward = float(rewards[tuple(word - 1 for word in reply)])
        weighty.append(row(prompt, list(reply), reward, weight=chance, member=member))
    learner.accumulate(EPOCH, 0, b"", weighty, 0.0)
    truth, _ = plain().gradient(weighty, 0.0, Objective.of(SUM))
    assert relative(learner.accumulator.total, truth) < 1e-9
    assert learner.critic.weights.abs().sum() > 1.0


@pytest.mark.parametrize(("gae_lambda", "unbiased"), [(1.0, True), (0.5, False)])
def test_over_two_turns_only_the_whole_return_is_unbiased_with_a_wrong_critic(gae_lambda: float, unbiased: bool):
    """The second prompt holds the first reply; a reward of both words comes at the end."""
    learner, words = learner_of(gae_lambda=gae_lambda), (1, 2, 3)
    trained_critic(learner)
    first = chances(learner, [4])
    rows, returns = [], []
    for member, (one, two) in enumerate(itertools.product(words, words)):
        chance = first[one - 1] * chances(learner, [4, one, 5])[two - 1]
        reward = float(one * two) - 3.0
        for turn, (prompt, word) in enumerate((([4], one), ([4, one, 5], two))):
            fields = {"member": member, "turn": turn, "weight": chance}
            rows.append(row(prompt, [word], reward * turn, **fields))
            returns.append(row(prompt, [word], reward, **fields))
    learner.accumulate(EPOCH, 0, b"", rows, 0.0)
    truth, _ = plain().gradient(returns, 0.0, Objective.of(SUM))
    distance = relative(learner.accumulator.total, truth)
    assert (distance < 1e-9) is unbiased


def test_both_agents_of_an_enumerated_matrix_game_have_their_true_gradient():
    """Each agent has a critic of its own; the partner is part of the chance it meets."""
    words, table = (1, 2, 3), np.random.default_rng(5).standard_normal((3, 3))
    one, other = learner_of(4), learner_of(5)
    trained_critic(one)
    trained_critic(other, 2)
    mine, theirs = chances(one, [6]), chances(other, [7])
    for learner, prompt, own, partner, payoff in ((one, [6], mine, theirs, table), (other, [7], theirs, mine, table.T)):
        rows = [
            row(prompt, [a], float(payoff[a - 1, b - 1]), weight=own[a - 1] * partner[b - 1], member=3 * a + b)
            for a, b in itertools.product(words, words)
        ]
        learner.accumulate(EPOCH, 0, b"", rows, 0.0)
        truth, _ = plain(4 if learner is one else 5).gradient(rows, 0.0, Objective.of(SUM))
        assert relative(learner.accumulator.total, truth) < 1e-9


def episodes_rows(seed: int) -> list[TrainRow]:
    rng = random.Random(seed)
    return [
        row(
            [rng.randint(4, 9) for _ in range(rng.randint(1, 6))],
            [rng.randint(1, 3) for _ in range(rng.randint(1, 3))],
            rng.gauss(0.0, 1.0),
            pair=f"{draw}:a",
            member=member,
            turn=turn,
        )
        for draw in range(4)
        for member in range(3)
        for turn in range(rng.randint(1, 3))
    ]


def test_any_split_by_episodes_and_any_packing_is_the_full_batch(monkeypatch: pytest.MonkeyPatch):
    rows = episodes_rows(1)
    whole = learner_of()
    trained_critic(whole)
    stats = whole.accumulate(EPOCH, 0, b"", rows, 0.05)
    episodes: dict[tuple[str, int], list[TrainRow]] = {}
    for each in rows:
        episodes.setdefault((each.pair, each.member), []).append(each)
    for seed in range(3):
        monkeypatch.setattr(learner_module, "TOKEN_BUDGET", {"cpu": (2048, 16, 64)[seed], "cuda": 2048})
        split, rng = learner_of(), random.Random(seed)
        trained_critic(split)
        order = rng.sample(list(episodes.values()), len(episodes))
        losses = 0.0
        for number in range(3):
            part = [each for episode in order[number::3] for each in episode]
            rng.shuffle(part)
            losses += split.accumulate(EPOCH, number, b"", part, 0.05).value_loss_sum
        assert relative(split.accumulator.total, whole.accumulator.total) < 1e-12
        assert losses == pytest.approx(stats.value_loss_sum, rel=1e-12)
        for each in (split, whole):
            each.critic.step()
        assert relative(split.critic.weights, whole.critic.weights) < 1e-12
        whole = learner_of()
        trained_critic(whole)
        whole.accumulate(EPOCH, 0, b"", rows, 0.05)


def test_asked_again_a_micro_batch_moves_the_critic_once():
    one, other = learner_of(), learner_of()
    rows = episodes_rows(2)
    one.accumulate(EPOCH, 0, b"x", rows, 0.0)
    assert one.accumulate(EPOCH, 0, b"x", rows, 0.0).value_rows == len(rows)
    other.accumulate(EPOCH, 0, b"x", rows, 0.0)
    for each in (one, other):
        each.step(1e-3)
    assert torch.equal(one.critic.weights, other.critic.weights)
    assert torch.count_nonzero(one.critic.weights)


def test_a_sum_begins_anew_with_its_accumulator():
    """Bound again, a policy accumulates the same again: the critic must not count it twice."""
    one, other = learner_of(), learner_of()
    rows = episodes_rows(3)
    one.accumulate(EPOCH, 0, b"", episodes_rows(4), 0.0)
    one.accumulator.open(EPOCH)
    for each in (one, other):
        each.accumulate(EPOCH, 0, b"", rows, 0.0)
        each.step(1e-3)
    assert torch.equal(one.critic.weights, other.critic.weights)


def train(trainer, versions: range, suspended: bool = False, epoch: str = "a") -> list[tuple[str, str]]:
    found, first = [], trainer._held["speaker"].stored.weights
    for version in versions:
        for part in (0, 1):
            accumulate(trainer, 2 * version + part, episodes_rows(10 * version + part), f"{version}:{epoch}")
            if suspended:
                # Another policy takes the memory meanwhile, and its critic with it.
                mine = suspend(trainer)
                digests = {name: held.stored.weights for name, held in trainer._held.items()}
                accumulate(trainer, 2 * version + part, episodes_rows(part), "0:a", "listener")
                theirs = suspend(trainer, "listener")
                resume(trainer, mine, version, found[-1][0] if found else first)
                resume(trainer, theirs, 0, digests["listener"], "listener")
        reply = step(trainer, [2 * version, 2 * version + 1], version + 1, f"{version}:{epoch}")
        found.append((reply.digest, reply.state))
    return found


def test_a_restored_or_suspended_critic_goes_on_bit_for_bit(tmp_path: Path):
    straight, suspended = (make_trainer(tmp_path / name, **GAE) for name in ("straight", "suspended"))
    for each in (straight, suspended):
        create(each)
        create(each, "listener")
    whole = train(straight, range(4))
    assert train(suspended, range(4), suspended=True) == whole
    half = make_trainer(tmp_path / "half", **GAE)
    create(half)
    assert train(half, range(2)) == whole[:2]
    half.settle()
    again = make_trainer(tmp_path / "half", "b", **GAE)
    again.bind(BindRequest("speaker", 2, *whole[1]))
    assert train(again, range(2, 4), epoch="b") == whole[2:]
    assert len({state for _, state in whole}) == 4


def test_the_weights_that_engines_load_know_nothing_of_a_critic(tmp_path: Path):
    trainer = make_trainer(tmp_path, **GAE)
    digest = create(trainer).digest
    assert create(make_trainer(tmp_path / "plain")).digest == digest
    assert not [name for name in trainer._held["speaker"].learner.parameters.named() if "critic" in name]


def test_every_trajectory_is_in_one_micro_batch_also_where_episodes_settle_alone():
    for changes in ({}, {"batch__settle": "episode"}, {"mechanisms__trainer_protocol": "per_group"}):
        spec = make_spec(algorithm__advantage={"type": "gae", "per_turn": True}, **changes)
        cluster = started(spec, seed=3, turns=4).run()
        place: dict[tuple[int, int, str], int] = {}
        for cut in cluster.commands("cut_micro_batch"):
            for s in cut.samples:
                assert place.setdefault((s.draw, s.member, s.role), cut.ref.no) == cut.ref.no


def test_rewards_stand_where_they_arise():
    samples = tuple(
        SampleRef(role=role, turn=turn, tokens=tokens, reward=reward)
        for role, turn, tokens, reward in (
            ("a", 0, 0, 1.0),
            ("a", 1, 3, 2.0),
            ("b", 1, 2, 7.0),
            ("a", 2, 2, 4.0),
            ("a", 3, 0, 8.0),
        )
    )
    one = EpisodeOutcome(
        member=0,
        attempt=1,
        status=EpisodeStatus.FINISHED,
        team_score=0.5,
        scores={"a": 0.5, "b": 0.25},
        samples=samples,
    )
    assert ADVANTAGES.make(ADVANTAGE.options("gae", per_turn=True)).rewards(one) == [0.0, 3.0, 7.0, 12.0, 0.0]
    assert ADVANTAGES.make(ADVANTAGE.options("gae", team_share=0.0)).rewards(one) == [0.0, 0.0, 0.25, 0.5, 0.0]


@pytest.mark.parametrize(
    ("changes", "pointer", "code"),
    [
        ({"advantage__divide_by_std": True}, "/algorithm/advantage/divide_by_std", "not_read"),
        ({"advantage__baseline_over": "rows"}, "/algorithm/advantage/baseline_over", "not_read"),
        (
            {"advantage__per_turn": True, "advantage__turn_rewards": "joint"},
            "/algorithm/advantage/turn_rewards",
            "not_read",
        ),
        ({"group_key": "team"}, "/algorithm/group_key", "not_with_gae"),
        ({"advantage__per_turn": True, "shaping": "maporl"}, "/algorithm/shaping/type", "not_with_gae"),
        ({"advantage__type": "grpo", "advantage__gae_lambda": 0.5}, "/algorithm/advantage/gae_lambda", "not_read"),
        ({"advantage__type": "rloo", "advantage__critic_rate": 0.5}, "/algorithm/advantage/critic_rate", "not_read"),
    ],
)
def test_what_a_critic_does_not_read_is_refused(changes: dict, pointer: str, code: str):
    found = refusals(**{f"algorithm__{name}": value for name, value in {"advantage__type": "gae", **changes}.items()})
    assert (pointer, code) in {(problem.pointer, problem.code) for problem in found}


def test_a_discount_needs_no_turn_rewards_beside_a_critic():
    assert not broken_rules(make_spec(algorithm__advantage={"type": "gae", "gamma": 0.9, "gae_lambda": 0.9}))
