"""HABC: what a turn of a solved episode weighs, how its heads are fitted, and a state that goes on bit for bit."""

import math
import random
from pathlib import Path

import pytest
import torch
from msgspec import structs

from flexmarl.algorithms.advantages import ADVANTAGES
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.team import AdamW
from flexmarl.contracts.wire import EpisodeOutcome, EpisodeStatus, SampleRef
from tests.unit.orchestrator.fake_cluster import make_spec
from tests.unit.orchestrator.fake_parts import refusals
from tests.unit.workers.test_train_critic import row, train
from tests.unit.workers.test_train_equality import EPOCH, SOURCE, WORDS, relative
from tests.unit.workers.test_train_trainer import create, make_trainer
from workers.models import architecture_of
from workers.models.weights import initial_weights
from workers.training.learner import Learner, Objective
from workers.training.success_heads import SuccessHeads, gate
from workers.training.wire import BindRequest, TrainRow

AVERAGES = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant_norm")


def options(**settings: object):
    return ADVANTAGE.options("habc", **{"warmup_steps": 0, **settings})


def learner_of(average: str = "token_mean", **settings: object) -> Learner:
    loss = LOSS.options(aggregation=average)
    algorithm = AlgorithmSpec(loss=loss, advantage=options(**settings))
    weights = initial_weights(SOURCE, WORDS, seed=4)
    return Learner(weights, architecture_of(SOURCE), Objective.of(loss, algorithm), AdamW(), "fp64", epoch=EPOCH)


def cloner(average: str = "token_mean") -> Learner:
    """A learner to which advantages are nothing but weights."""
    loss = LOSS.options(aggregation=average)
    weights = initial_weights(SOURCE, WORDS, seed=4)
    return Learner(weights, architecture_of(SOURCE), Objective.of(loss), AdamW(), "fp64", epoch=EPOCH)


def taught(learner: Learner, seed: int = 1) -> Learner:
    """Any heads will do."""
    made, weights = torch.Generator().manual_seed(seed), learner.critic.weights
    weights.copy_(0.5 * torch.randn(weights.shape, generator=made, dtype=torch.float64))
    return learner


def episodes(seed: int, solved: float = 0.5) -> list[TrainRow]:
    rng, rows = random.Random(seed), []
    for draw in range(4):
        for member in range(3):
            outcome = 1.0 if rng.random() < solved else -1.0
            for turn in range(rng.randint(1, 4)):
                prompt = [rng.randint(4, 9) for _ in range(rng.randint(1, 6))]
                response = [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
                rows.append(row(prompt, response, outcome, pair=f"{draw}:a", member=member, turn=turn))
    return rows


def test_worked_examples_of_the_gate():
    assert gate(0.5, 0.2, 1.0) == pytest.approx(1.537, abs=5e-4)
    assert gate(0.3, 0.0, 0.0) == 1.0, "plain cloning"
    assert gate(0.0, 0.7, -50.0) == pytest.approx(1.0 + math.tanh(0.7)), "unlikely: care for success alone"
    assert gate(1.0, -50.0, 0.7) == pytest.approx(1.0 + math.tanh(0.7)), "certain: care for speed alone"
    assert all(0.0 <= gate(p, a, b) <= 2.0 for p in (0.0, 0.5, 1.0) for a in (-20, 20) for b in (-60, 60))


def test_weights_are_those_of_the_heads_turn_by_turn():
    """One figure is read of a turn; z = 2 x, v = -3 x."""
    heads = SuccessHeads(1, options())
    heads.weights.copy_(torch.tensor([2.0, 0.0, -3.0, 0.0]))
    rows = [row([1], [1], 1.0, turn=turn) for turn in range(3)]
    rows.append(row([1], [1], -1.0, member=1))
    read = torch.tensor([[0.1], [0.4], [0.5], [0.5]], dtype=torch.float64)
    found, judged = heads.judge(rows, read)
    logits, values = [0.2, 0.8, 1.0, 10.0], [-0.3, -1.2, -1.5, 0.0]
    for turn in range(3):
        chance = 1.0 / (1.0 + math.exp(-logits[turn]))
        likelier, nearer = logits[turn + 1] - logits[turn], -1.0 + values[turn + 1] - values[turn]
        expected = 1.0 + math.tanh((1.0 - chance) * likelier + chance * nearer)
        assert found[turn].advantages == pytest.approx([expected])
    assert found[3].advantages == [0.0]
    assert judged.rows == 4


def test_order_and_other_episodes_change_no_weight():
    heads, rows = taught(learner_of()).critic, episodes(1)
    read = torch.randn(len(rows), SOURCE_WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    whole = [one.advantages for one in heads.judge(rows, read)[0]]
    order = random.Random(2).sample(range(len(rows)), len(rows))
    assert [one.advantages for one in heads.judge([rows[n] for n in order], read[order])[0]] == [
        pytest.approx(whole[n]) for n in order
    ]
    assert {tuple(own) for own in whole if own[0]} != {(1.0,)}


SOURCE_WIDTH = learner_of().decoder.width


def test_heads_that_believe_anything_stay_within_their_bounds():
    heads = SuccessHeads(1, options(most_turns=5))
    heads.weights.copy_(torch.tensor([1e6, 0.0, -1e6, 0.0]))
    rows = [row([1], [1], 1.0, turn=turn) for turn in range(2)]
    read = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    (first, last), judged = heads.judge(rows, read)
    chance, unlikely = (1.0 / (1.0 + math.exp(-z)) for z in (10.0, -10.0))
    assert first.advantages == pytest.approx([gate(chance, -20.0, -1.0 + 0.0 + 5.0)])
    assert last.advantages == pytest.approx([gate(unlikely, 20.0, -1.0)])
    assert math.isfinite(judged.loss)
    assert torch.isfinite(judged.gradient).all()
    heads.weights.copy_(torch.tensor([10.0, 0.0, 0.0, 0.0]))
    likely, _ = heads.judge(rows, torch.tensor([[0.8], [1.2]], dtype=torch.float64))[0]
    assert likely.advantages == pytest.approx([gate(1.0 / (1.0 + math.exp(-8.0)), 10.0 - 8.0, 0.0)], rel=1e-9)


def test_before_any_success_only_its_chance_counts():
    heads, rows = SuccessHeads(1, options()), [row([1], [1], 1.0, turn=turn) for turn in range(2)]
    read = torch.tensor([[0.1], [0.4]], dtype=torch.float64)
    heads.weights.copy_(torch.tensor([2.0, 0.0, 0.0, 0.0]))
    weights = [one.advantages[0] for one in heads.judge(rows, read)[0]]
    chance = 1.0 / (1.0 + math.exp(-0.2))
    assert weights[0] == pytest.approx(gate(chance, 0.6, 0.0))
    for _ in range(2):  # failures alone move the chance and leave the other head where it is
        _, judged = heads.judge([structs.replace(one, advantages=[-1.0]) for one in rows], read)
        heads.gather(judged, first=True)
        heads.step()
    assert heads.weights.view(2, -1)[0].any()
    assert not heads.weights.view(2, -1)[1].any()


def test_both_heads_move_down_the_gradient_of_their_losses():
    heads, rows = SuccessHeads(2, options()), episodes(5)
    made = torch.Generator().manual_seed(2)
    read = torch.randn(len(rows), 2, generator=made, dtype=torch.float64)
    heads.weights.copy_(torch.randn(6, generator=made, dtype=torch.float64))
    _, judged = heads.judge(rows, read)
    inputs = torch.cat((read, torch.ones(len(rows), 1, dtype=torch.float64)), 1)
    weights = heads.weights.clone().requires_grad_()
    solved = torch.tensor([one.advantages[0] > 0 for one in rows])
    targets = [
        -float(sum((o.pair, o.member) == (one.pair, one.member) and o.turn >= one.turn for o in rows)) for one in rows
    ]
    raw, far = inputs @ weights.view(2, -1)[0], inputs @ weights.view(2, -1)[1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(raw, solved.double(), reduction="sum")
    target = torch.tensor(targets, dtype=torch.float64)
    loss = loss + torch.nn.functional.huber_loss(far[solved], target[solved], reduction="sum")
    (gradient,) = torch.autograd.grad(loss, weights)
    assert judged.loss == pytest.approx(loss.item())
    assert torch.allclose(judged.gradient, gradient, rtol=1e-12, atol=1e-12)


def test_fitted_heads_count_the_turns_to_success_and_know_who_fails():
    """Two kinds of episodes of three turns, told apart by a figure that the others have not; one kind fails."""
    heads = SuccessHeads(6, options(critic_rate=0.05))
    rows = [row([1], [1], won, turn=turn, member=int(won > 0)) for won in (1.0, -1.0) for turn in range(3)]
    read = torch.eye(6, dtype=torch.float64)
    for _ in range(600):
        _, judged = heads.judge(rows, read)
        heads.gather(judged, first=True)
        heads.step()
    inputs = torch.cat((read, torch.ones(6, 1, dtype=torch.float64)), 1)
    logits, values = (inputs @ own for own in heads.weights.view(2, -1))
    assert values[:3].tolist() == pytest.approx([-3.0, -2.0, -1.0], abs=0.05)
    assert (logits[:3] > 3).all()
    assert (logits[3:] < -3).all()


@pytest.mark.parametrize("average", AVERAGES)
def test_a_step_is_that_of_cloning_with_weights_whose_mean_is_one(average: str):
    rows = episodes(2)
    learner = taught(learner_of(average))
    read_by = taught(learner_of(average))
    stats = learner.accumulate(EPOCH, 0, b"", rows, 0.0)
    found, _ = read_by._judged(read_by.critic, rows)
    kept = [one for one in found if one.advantages[0]]
    plain = cloner(average)
    shares = [plain._objective.aggregate(len(one.response) // 4)[1] for one in kept]
    mean = sum(one.advantages[0] * share for one, share in zip(kept, shares, strict=True)) / sum(shares)
    scaled = [structs.replace(one, advantages=[one.advantages[0] / mean]) for one in kept]
    normalised = sum(one.advantages[0] * share for one, share in zip(scaled, shares, strict=True)) / sum(shares)
    assert normalised == pytest.approx(1.0)
    assert mean != pytest.approx(1.0, abs=0.02)
    total, cloned = plain.gradient(scaled, 0.0, plain._objective)
    assert relative(learner.accumulator.total / stats.z, total / cloned.z) < 1e-12
    assert (stats.rows, len(kept)) == (len(rows), sum(one.advantages[0] > 0 for one in rows))


def test_while_the_heads_learn_it_is_cloning_of_what_solved():
    rows = episodes(3)
    learner, plain = taught(learner_of(warmup_steps=1)), cloner()
    stats = learner.accumulate(EPOCH, 0, b"", rows, 0.0)
    total, cloned = plain.gradient([one for one in rows if one.advantages[0] > 0], 0.0, plain._objective)
    assert stats.z == cloned.z
    assert torch.equal(learner.accumulator.total, total)
    learner.step(1e-3)
    learner.accumulator.open(EPOCH)
    gated = learner.accumulate(EPOCH, 0, b"", rows, 0.0)
    assert gated.z != stats.z, "one step was taken"


def test_any_split_by_episodes_is_the_whole_batch():
    rows = episodes(4)
    whole, split = taught(learner_of()), taught(learner_of())
    stats = whole.accumulate(EPOCH, 0, b"", rows, 0.0)
    parts = [[one for one in rows if one.member == member] for member in (2, 0, 1)]
    for number, part in enumerate(parts):
        split.accumulate(EPOCH, number, b"", part, 0.0)
    assert split.accumulator.z == pytest.approx(stats.z, rel=1e-12)
    assert relative(split.accumulator.total, whole.accumulator.total) < 1e-12
    for each in (whole, split):
        each.critic.step()
    assert relative(split.critic.weights, whole.critic.weights) < 1e-12


def test_a_step_without_success_moves_the_heads_alone():
    learner = taught(learner_of())
    expected, policy = learner.critic.weights.clone(), learner.parameters.master.clone()
    stats = learner.accumulate(EPOCH, 0, b"", episodes(6, solved=0.0), 0.05)
    assert (stats.z, stats.tokens) == (0.0, 0)
    assert learner.step(1e-2).null_step
    assert torch.equal(learner.parameters.master, policy)
    assert not torch.equal(learner.critic.weights.view(2, -1)[0], expected.view(2, -1)[0])
    assert torch.equal(learner.critic.weights.view(2, -1)[1], expected.view(2, -1)[1])


HABC = {"algorithm": {"advantage": {"type": "habc", "warmup_steps": 1}}}


def test_restored_heads_go_on_bit_for_bit(tmp_path: Path):
    straight = make_trainer(tmp_path / "straight", **HABC)
    create(straight)
    whole = train(straight, range(4))
    half = make_trainer(tmp_path / "half", **HABC)
    create(half)
    assert train(half, range(2)) == whole[:2]
    half.settle()
    again = make_trainer(tmp_path / "half", "b", **HABC)
    again.bind(BindRequest("speaker", 2, *whole[1]))
    assert train(again, range(2, 4), epoch="b") == whole[2:]


def test_suspended_heads_go_on_bit_for_bit(tmp_path: Path):
    straight, suspended = (make_trainer(tmp_path / name, **HABC) for name in ("straight", "suspended"))
    for each in (straight, suspended):
        create(each)
        create(each, "listener")
    assert train(suspended, range(3), suspended=True) == train(straight, range(3))


def test_every_turn_is_told_how_its_episode_ended():
    samples = tuple(SampleRef(role="a", turn=turn, tokens=2, reward=0.3) for turn in range(2))
    for solved, expected in ((True, 1.0), (False, -1.0)):
        one = EpisodeOutcome(
            member=0, attempt=1, status=EpisodeStatus.FINISHED, team_score=0.4, solved=solved, samples=samples
        )
        assert ADVANTAGES.make(ADVANTAGE.options("habc")).rewards(one) == [expected, expected]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"loss": "ppo_clip"}, "/algorithm/loss/type"),
        ({"correction": "truncated_importance"}, "/algorithm/correction/type"),
        ({"group_key": "team"}, "/algorithm/group_key"),
        ({"shaping": "overlong"}, "/algorithm/shaping/type"),
        ({"advantage__per_turn": True}, "/algorithm/advantage/per_turn"),
        ({"advantage__team_share": 0.5}, "/algorithm/advantage/team_share"),
    ],
    ids=str,
)
def test_what_imitation_does_not_read_is_refused(changes: dict, pointer: str):
    assert not broken_rules(make_spec(algorithm__advantage={"type": "habc"}))
    found = refusals(**{f"algorithm__{name}": value for name, value in {"advantage__type": "habc", **changes}.items()})
    assert (pointer, "not_with_habc") in {(problem.pointer, problem.code) for problem in found}
