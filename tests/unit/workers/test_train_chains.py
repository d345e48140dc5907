"""A chain row is trained as the turns that it replaces, read once: equal gradients, and figures that see the chain."""

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs

from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS, LossOptions
from flexmarl.contracts.specification.team import AdamW, FolderModel, PolicySpec
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.chat_templates import small_chat_model
from tests.unit.workers.test_train_equality import SOURCE, WORDS, relative
from tests.unit.workers.test_train_pairs import SETTINGS, formula
from workers.models import architecture_of
from workers.models.families import shape_of
from workers.models.opening import allow
from workers.models.weights import initial_weights
from workers.training import learner as learner_module
from workers.training.blocks import blocks_of
from workers.training.decoder import Decoder, parameter_order
from workers.training.errors import TrainerRefusal
from workers.training.learner import Learner, Objective
from workers.training.objective import token_scores
from workers.training.packing import pack
from workers.training.parameters import FlatParameters
from workers.training.wire import TrainRow

TOKEN_LEVEL = ("policy_gradient", "ppo_clip", "cispo", "sapo", "decoupled_ppo")
COUNTS_TOKENS = ("token_mean", "constant_norm", "seq_mean_token_sum")
"""Aggregations whose coefficients do not know how long a row is."""
KL = {"kl": {"coefficient": 0.2}}


def chains(seed: int, count: int = 12, words: int = WORDS) -> list[TrainRow]:
    """Return chains of one to four turns, some sharing all that is read, some with a turn in which nothing is said."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        turns = int(rng.integers(1, 5))
        spans = rng.integers(1, 7, 2 * turns)
        if turns > 2 and number % 2:
            spans[3] = 0
        said = int(spans[1::2].sum())
        allowed = np.arange(2, 15) if number % 3 == 0 else np.arange(0)
        row = TrainRow(
            prompt=rng.integers(1, words, spans[::2].sum()).astype("<i4").tobytes(),
            response=rng.integers(2, 15, said).astype("<i4").tobytes(),
            logprobs=(-2.5 + 0.5 * rng.standard_normal(said)).astype("<f4").tobytes(),
            allowed=allowed.astype("<i4").tobytes(),
            temperature=(1.0, 0.7)[number % 2],
            advantages=rng.standard_normal(turns).tolist(),
            weight=(1.0, 0.25)[number % 4 // 2],
            segments=[number % 3, said],
            pair=f"{number // 4}:a",
            member=number % 4,
            spans=spans.tolist(),
        )
        rows += [row, structs.replace(row, advantages=[-0.5 * a for a in row.advantages], member=4)][: 1 + number % 2]
    return rows


def turns_of(row: TrainRow) -> list[TrainRow]:
    """Return the rows that a chain replaces: one per turn that said something, each with all before as its prompt."""
    read, said, logprobs = (np.frombuffer(one, "<i4").tolist() for one in (row.prompt, row.response, row.logprobs))
    sequence: list[int] = []
    found, at, version = [], [0, 0], row.segments[0]
    for turn, (context, sampled) in enumerate(_pairs(row)):
        sequence += read[at[0] : at[0] + context]
        reply = slice(at[1], at[1] + sampled)
        if sampled:
            found.append(
                structs.replace(
                    row,
                    prompt=np.array(sequence, "<i4").tobytes(),
                    response=np.array(said[reply], "<i4").tobytes(),
                    logprobs=np.array(logprobs[reply], "<i4").tobytes(),
                    advantages=[row.advantages[turn]],
                    segments=[version, sampled],
                    turn=row.turn + turn,
                    spans=[],
                )
            )
        sequence += said[reply]
        at = [at[0] + context, at[1] + sampled]
    return found


def _pairs(row: TrainRow) -> list[tuple[int, int]]:
    lengths = row.lengths()
    return list(zip(lengths[::2], lengths[1::2], strict=True))


def each_turn(rows: list[TrainRow]) -> list[TrainRow]:
    return [turn for row in rows for turn in turns_of(row)]


def native(objective: Objective, precision: str = "fp32") -> Learner:
    weights = initial_weights(SOURCE, WORDS, seed=4)
    return Learner(weights, architecture_of(SOURCE), objective, AdamW(), precision, epoch="0:a")


def reference(precision: str) -> Decoder:
    weights = initial_weights(SOURCE, WORDS, seed=9)
    flat = FlatParameters(weights, parameter_order(weights.keys()), precision, "cpu", frozen=True)
    return Decoder(flat, architecture_of(SOURCE))


@pytest.mark.parametrize("aggregation", COUNTS_TOKENS)
@pytest.mark.parametrize("kind", TOKEN_LEVEL)
def test_a_chains_gradient_is_the_sum_of_its_turns(kind: str, aggregation: str) -> None:
    loss = LOSS.options(type=kind, aggregation=aggregation)
    objective = Objective.of(loss, AlgorithmSpec(loss=loss, **KL))
    for seed in range(3):
        rows = chains(seed)
        learner = native(objective)
        near = reference("fp32")
        gradient, stats = learner.gradient(rows, 0.3, objective, 3, near)
        gradient = gradient.clone()
        expected, by_turn = learner.gradient(each_turn(rows), 0.3, objective, 3, near)
        assert relative(gradient, expected) < 1e-5
        assert stats.tokens == by_turn.tokens == sum(len(row.response) // 4 for row in rows)
        assert stats.loss_sum == pytest.approx(by_turn.loss_sum, rel=1e-4, abs=1e-4)
        assert stats.entropy_sum == pytest.approx(by_turn.entropy_sum, rel=1e-5)
        assert stats.kl_reference_sum == pytest.approx(by_turn.kl_reference_sum, rel=1e-4)
        assert stats.older_tokens == by_turn.older_tokens
        if aggregation == "token_mean":
            assert stats.z == by_turn.z == stats.tokens


def test_any_packing_of_chains_gives_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, rows = Objective.of(LOSS.options(type="gspo")), chains(3, 24)
    whole = native(objective, "fp64").gradient(rows, 0.1, objective)[0]
    for budget in (1, 40, 10**6):
        monkeypatch.setitem(learner_module.TOKEN_BUDGET, "cpu", budget)
        found = native(objective, "fp64").gradient(rows[::-1], 0.1, objective)[0]
        assert relative(found, whole) < 1e-12


def scored(learner: Learner, row: TrainRow) -> torch.Tensor:
    """Return log-probabilities of what a row's turns said, turn by turn, with gradient."""
    packs = (pack(blocks_of([turn], lambda n: (1.0, 1.0), WORDS), WORDS, 4096) for turn in turns_of(row))
    return torch.cat([token_scores(learner.decoder, batch)[0][0] for (batch,) in packs])


def per_token(row: TrainRow) -> torch.Tensor:
    advantages = [a for a, (_, sampled) in zip(row.advantages, _pairs(row), strict=True) for _ in range(sampled)]
    return torch.tensor(advantages, dtype=torch.float64)


@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "seq_mean_token_sum"])
def test_a_sequence_is_the_whole_chain(aggregation: str) -> None:
    """GSPO by its definition: one ratio of all that was said in a chain, each token with the advantage of its turn."""
    loss = LOSS.options(type="gspo", aggregation=aggregation)
    objective, rows = Objective.of(loss), chains(7)
    learner = native(objective, "fp64")
    gradient, stats = learner.gradient(rows, 0.0, objective)
    gradient = gradient.clone()
    learner.parameters.fresh.zero_()
    value = torch.zeros((), dtype=torch.float64)
    for row in rows:
        logprobs, behaviour = scored(learner, row), torch.from_numpy(np.frombuffer(row.logprobs, "<f4").copy())
        ratio, advantages = (logprobs - behaviour).mean().exp(), per_token(row)
        bounded = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
        terms = -torch.minimum(ratio * advantages, bounded * advantages)
        value = value + row.weight * (terms.mean() if aggregation == "seq_mean_token_mean" else terms.sum())
    value.backward()
    assert relative(gradient, learner.parameters.fresh) < 1e-10
    assert stats.z == len(rows)


def test_preferences_weigh_turns() -> None:
    """A pair's margin is that of all its turns, and turns of no pair have no part in it."""
    objective = Objective.of(SETTINGS)
    rows = [
        structs.replace(
            row, pair=f"{n // 2}:a", member=n % 2, weight=1.0, advantages=[(1.0, -1.0)[n % 2]] * len(row.advantages)
        )
        for n, row in enumerate(chains(5, 8))
    ]
    rows = rows[: len(rows) // 2 * 2]
    rows[0].advantages[0] = 0.0 if len(rows[0].advantages) > 1 else 1.0
    learner, near = native(objective, "fp64"), reference("fp64")
    gradient, stats = learner.gradient(rows, 0.0, objective, reference=near)
    expected, loss, pairs = formula(each_turn(rows), "fp64")
    assert relative(gradient, expected) < 1e-10
    assert (stats.z, stats.loss_sum) == (pairs, pytest.approx(loss))


def test_a_critic_judges_turns() -> None:
    loss = LOSS.options(aggregation="seq_mean_token_sum")
    objective = Objective.of(loss, AlgorithmSpec(loss=loss, advantage=ADVANTAGE.options(type="gae", gamma=0.9)))
    rows = chains(11, 16)
    learners = [native(objective, "fp64") for _ in range(2)]
    figures = []
    for learner, given in zip(learners, (rows, each_turn(rows)), strict=True):
        made = torch.Generator().manual_seed(1)
        learner.critic.weights.copy_(torch.randn(learner.critic.weights.shape, generator=made, dtype=torch.float64))
        figures.append(learner.accumulate("0:a", 0, b"", given, 0.0))
        learner.critic.step()
    assert relative(learners[0].accumulator.total, learners[1].accumulator.total) < 1e-10
    assert torch.allclose(learners[0].critic.weights, learners[1].critic.weights, atol=1e-12)
    assert figures[0].value_rows == figures[1].value_rows == len(each_turn(rows)) > len(rows)
    assert figures[0].value_loss_sum == pytest.approx(figures[1].value_loss_sum)


def test_the_other_back_end_agrees(tmp_path: Path) -> None:
    allow(ModelRoots((str(tmp_path),)))
    policy = PolicySpec(model=FolderModel(path=str(small_chat_model(tmp_path / "model"))), trainer="transformers")
    loss: LossOptions = LOSS.options(type="ppo_clip")
    objective, rows = Objective.of(loss), chains(2)
    learner = Learner(initial_weights(policy.source, 0, 0), shape_of(policy), objective, AdamW(), "fp32", epoch="0:a")
    allow(ModelRoots())
    gradient, _ = learner.gradient(rows, 0.1, objective)
    gradient = gradient.clone()
    expected, _ = learner.gradient(each_turn(rows), 0.1, objective)
    assert relative(gradient, expected) < 1e-5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"advantages": [1.0]}, "1 advantages of 2 turns"),
        ({"spans": [2, 1, 1]}, "2 advantages of 1.5 turns"),
        ({"spans": [2, 2, 1, 1]}, "turns of other lengths than the row's"),
        ({"spans": [0, 1, 3, 1]}, "turns of other lengths than the row's"),
        ({"advantages": [1.0, float("nan")]}, "not finite"),
    ],
)
def test_rows_whose_turns_do_not_fit_are_refused(changes: dict[str, object], said: str) -> None:
    ids = np.array([3, 4, 5], "<i4")
    row = TrainRow(ids.tobytes(), ids[:2].tobytes(), bytes(8), b"", 1.0, [1.0, 2.0], 1.0, spans=[2, 1, 1, 1])
    objective = Objective.of(LOSS.options())
    native(objective).gradient([row], 0.0, objective)
    with pytest.raises(TrainerRefusal, match=said):
        native(objective).gradient([structs.replace(row, **changes)], 0.0, objective)
