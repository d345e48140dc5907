"""The gradient is that of the normal form, whatever the split, order and sharing of its rows."""

import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flexmarl.algorithms.aggregation import aggregation_of
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS, LossOptions
from flexmarl.contracts.specification.team import AdamW, FactoryModel
from workers.models import architecture_of, build_model
from workers.models.weights import initial_weights
from workers.training import learner as learner_module
from workers.training.errors import TrainerRefusal
from workers.training.learner import Learner, Objective
from workers.training.wire import TrainRow

WORDS = 20
VOCABULARY = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(WORDS - 3)))
SOURCE = FactoryModel()
AGGREGATION_NAMES = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant_norm")
RELATIVE_L2 = {"fp32": 1e-5, "fp64": 1e-12}


def make_learner(loss: LossOptions, precision: str = "fp32", recompute: bool = False) -> Learner:
    weights = initial_weights(SOURCE, WORDS, seed=4)
    architecture, objective = architecture_of(SOURCE), Objective.of(loss)
    return Learner(weights, architecture, objective, AdamW(), precision, epoch="0:a", recompute=recompute)


def make_row(rng: np.random.Generator, prompt: int, response: int, **changes: object) -> TrainRow:
    """Return a row without padding tokens, whose embedding Hugging Face never trains; `allowed` limits its response."""
    allowed = np.array(changes.pop("allowed", ()), "<i4")
    legal = allowed if len(allowed) else np.arange(1, WORDS)
    fields = {
        "prompt": rng.integers(1, WORDS, prompt).astype("<i4").tobytes(),
        "response": rng.choice(legal, response).astype("<i4").tobytes(),
        "logprobs": (-2.5 + 0.5 * rng.standard_normal(response)).astype("<f4").tobytes(),
        "allowed": allowed.tobytes(),
        "temperature": 1.0,
        "advantages": [float(rng.standard_normal())],
        "weight": 1.0,
    }
    return TrainRow(**(fields | changes))


def ragged_rows(seed: int, count: int = 48) -> list[TrainRow]:
    """Rows of many shapes, masks and temperatures, with repetitions and some that share all but the last token."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        allowed = ((), (3, 5, 7, 9), tuple(range(2, 15)))[number % 3]
        row = make_row(
            rng,
            int(rng.integers(1, 9)),
            int(rng.integers(1, 7)),
            allowed=allowed,
            temperature=(1.0, 0.7)[number % 2],
            weight=(1.0, 0.25, 2.0)[int(rng.integers(3))],
        )
        rows.append(row)
    for row in rows[:12]:
        rows.append(_replace(row, advantages=[row.advantages[0] - 0.5]))
    for row in rows[:12:3]:  # unmasked ones
        last = np.array([row.response[-4] % (WORDS - 1) + 1], "<i4").tobytes()
        rows.append(_replace(row, response=row.response[:-4] + last, advantages=[1.0]))
    return rows


def _replace(row: TrainRow, **changes: object) -> TrainRow:
    return TrainRow(**({name: getattr(row, name) for name in row.__struct_fields__} | changes))


def reference_gradient(
    rows: list[TrainRow], loss: LossOptions, entropy_coef: float
) -> tuple[dict[str, torch.Tensor], float]:
    """The definition, row by row and token by token, on the plain Hugging Face model."""
    model = build_model(SOURCE, VOCABULARY, seed=4)
    total, z = torch.zeros(()), 0.0
    for row in rows:
        prompt, response = (np.frombuffer(ids, "<i4").astype(np.int64) for ids in (row.prompt, row.response))
        behaviour = torch.from_numpy(np.frombuffer(row.logprobs, "<f4").copy())
        logits = model(input_ids=torch.from_numpy(np.concatenate((prompt, response)))[None]).logits[0]
        allowed = np.frombuffer(row.allowed, "<i4").astype(np.int64)
        legal = torch.from_numpy(allowed) if len(allowed) else torch.arange(WORDS)
        c, share = aggregation_of(loss)(len(response))
        z += share
        for t, token in enumerate(response):
            scores = F.log_softmax(logits[len(prompt) - 1 + t][legal] / row.temperature, -1)
            logprob = scores[(legal == token).nonzero().item()]
            entropy = -(scores.exp() * scores).sum()
            if loss.type == "policy_gradient":
                term = -row.advantages[0] * logprob
            else:
                ratio = (logprob - behaviour[t]).exp()
                bounded = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
                term = -torch.minimum(ratio * row.advantages[0], bounded * row.advantages[0])
            total = total + row.weight * c * (term - entropy_coef * entropy)
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, z


def by_name(learner: Learner, gradient: torch.Tensor) -> dict[str, torch.Tensor]:
    parameters = learner.parameters
    order, found, start = list(parameters.named().items()), {}, 0
    for name, tensor in order:
        found[name] = gradient[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
    return found


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("aggregation", AGGREGATION_NAMES)
@pytest.mark.parametrize("kind", ["policy_gradient", "ppo_clip"])
def test_gradient_is_the_definition_on_the_hugging_face_model(kind: str, aggregation: str):
    loss = LOSS.options(type=kind, aggregation=aggregation)
    rows = ragged_rows(seed=1, count=24)
    learner = make_learner(loss)
    gradient, stats = learner.gradient(rows, 0.3, Objective.of(loss))
    expected, z = reference_gradient(rows, loss, 0.3)
    assert stats.z == pytest.approx(z)
    assert (stats.rows, stats.tokens) == (len(rows), sum(len(row.response) // 4 for row in rows))
    found = by_name(learner, gradient)
    assert found.keys() == expected.keys()
    whole = torch.cat([found[name].flatten() for name in sorted(found)])
    assert relative(whole, torch.cat([expected[name].flatten() for name in sorted(found)])) < 1e-5
    for name, tensor in expected.items():
        if not name.endswith("k_proj.bias"):  # attention does not see it: its true gradient is 0
            assert relative(found[name], tensor) < 1e-4, name


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("aggregation", AGGREGATION_NAMES)
@pytest.mark.parametrize("kind", ["policy_gradient", "ppo_clip"])
@pytest.mark.slow
def test_gradient_does_not_depend_on_split_and_order(kind: str, aggregation: str, precision: str):
    loss = LOSS.options(type=kind, aggregation=aggregation)
    rows = ragged_rows(seed=2)
    whole = make_learner(loss, precision)
    whole.accumulate("0:a", 0, b"", rows, 0.05)
    for seed in range(4):
        order = random.Random(seed)
        shuffled = order.sample(rows, len(rows))
        cuts = sorted(order.sample(range(1, len(rows)), order.randint(1, 9)))
        parts = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        split = make_learner(loss, precision)
        for number, part in enumerate(parts):
            split.accumulate("0:a", number, b"", part, 0.05)
        assert split.accumulator.z == pytest.approx(whole.accumulator.z, rel=1e-12)
        assert relative(split.accumulator.total, whole.accumulator.total) < RELATIVE_L2[precision]


def test_mean_of_micro_batch_means_would_be_wrong():
    """The trap the normal form avoids; shows that the split above is uneven enough to notice."""
    loss = LOSS.options()
    rows = ragged_rows(seed=3)
    learner = make_learner(loss)
    whole, stats = learner.gradient(rows, 0.0, Objective.of(loss))
    mean = whole / stats.z
    means = []
    for part in (rows[:3], rows[3:20], rows[20:]):
        gradient, stats = learner.gradient(part, 0.0, Objective.of(loss))
        means.append(gradient / stats.z)
    assert relative(sum(means) / 3, mean) > 0.05


def test_long_neighbours_and_small_budgets_change_nothing(monkeypatch: pytest.MonkeyPatch):
    loss = LOSS.options()
    rows = ragged_rows(seed=5)
    expected, _ = make_learner(loss, "fp64").gradient(rows, 0.1, Objective.of(loss))
    for budget in (1, 16, 40, 100_000):
        monkeypatch.setitem(learner_module.TOKEN_BUDGET, "cpu", budget)
        found, _ = make_learner(loss, "fp64").gradient(rows, 0.1, Objective.of(loss))
        assert relative(found, expected) < 1e-12


def test_a_token_that_was_not_allowed_has_neither_probability_nor_gradient():
    loss = LOSS.options()
    rng = np.random.default_rng(6)
    rows = [make_row(rng, 4, 3, allowed=(3, 5, 7)) for _ in range(8)]
    learner = make_learner(loss)
    gradient, stats = learner.gradient(rows, 0.5, Objective.of(loss))
    head = by_name(learner, gradient)["lm_head.weight"]
    forbidden = [word for word in range(WORDS) if word not in (3, 5, 7)]
    assert torch.count_nonzero(head[forbidden]) == 0
    assert torch.count_nonzero(head[[3, 5, 7]]) > 0
    assert 0 < stats.entropy_sum / stats.tokens <= np.log(3) + 1e-6


def test_figures_against_the_engine():
    """Rows whose log-probabilities are the policy's own show no gap; a wrong engine shows."""
    loss = LOSS.options(type="ppo_clip")
    learner = make_learner(loss)
    rows = ragged_rows(seed=7)
    own = [_replace(row, logprobs=_own_logprobs(row)) for row in rows]
    _, stats = learner.gradient(own, 0.0, Objective.of(loss))
    assert stats.logprob_gap_sum / stats.tokens < 1e-5
    assert abs(stats.kl_engine_sum) < 1e-5
    assert stats.clipped_sum == 0
    _, stats = learner.gradient(rows, 0.0, Objective.of(loss))
    assert stats.logprob_gap_sum / stats.tokens > 0.1
    assert stats.kl_engine_sum > 0.1
    assert stats.clipped_sum > 0


def _own_logprobs(row: TrainRow) -> bytes:
    model = build_model(SOURCE, VOCABULARY, seed=4)
    prompt, response = (np.frombuffer(ids, "<i4").astype(np.int64) for ids in (row.prompt, row.response))
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(np.concatenate((prompt, response)))[None]).logits[0]
    logits = logits[len(prompt) - 1 : -1] / row.temperature
    allowed = np.frombuffer(row.allowed, "<i4").astype(np.int64)
    if len(allowed):
        mask = torch.full((WORDS,), float("-inf"))
        mask[torch.from_numpy(allowed)] = 0.0
        logits = logits + mask
    scores = logits.log_softmax(-1)
    return scores[torch.arange(len(response)), torch.from_numpy(response)].numpy().astype("<f4").tobytes()


def test_weight_scales_a_row_and_leaves_z():
    loss = LOSS.options()
    rng = np.random.default_rng(8)
    row = make_row(rng, 3, 4)
    learner = make_learner(loss, "fp64")
    once, stats = learner.gradient([row], 0.2, Objective.of(loss))
    once = once.clone()
    thrice, weighed = learner.gradient([_replace(row, weight=3.0)], 0.2, Objective.of(loss))
    assert relative(thrice, 3 * once) < 1e-12
    assert weighed.z == stats.z == 4.0


def test_tokens_of_older_versions_are_counted_apart():
    """What the trained version made tells of the engine; what older ones made, of the updates since as well."""
    loss = LOSS.options(type="ppo_clip")
    learner = make_learner(loss)
    rng = np.random.default_rng(8)
    rows = [make_row(rng, 3, 4, segments=segments) for segments in ([7, 4], [5, 1, 7, 3], [6, 4], [])]
    _, stats = learner.gradient(rows, 0.0, Objective.of(loss), version=7)
    assert (stats.tokens, stats.older_tokens) == (16, 5)
    old = [_replace(row, segments=[5, 4]) for row in rows]
    _, older = learner.gradient(old, 0.0, Objective.of(loss), version=7)
    _, fresh = learner.gradient([_replace(row, segments=[]) for row in rows], 0.0, Objective.of(loss), version=7)
    assert (older.older_tokens, older.kl_engine_sum, older.logprob_gap_max) == (16, 0.0, 0.0)
    assert older.kl_update_sum == pytest.approx(fresh.kl_engine_sum)
    assert stats.kl_engine_sum + stats.kl_update_sum == pytest.approx(fresh.kl_engine_sum)
    assert fresh.logprob_gap_sum / 16 < fresh.logprob_gap_max <= fresh.logprob_gap_sum
    assert stats.loss_sum == pytest.approx(fresh.loss_sum), "ages alone change no gradient"


def test_version_segments_of_another_length_are_refused():
    learner = make_learner(LOSS.options())
    row = make_row(np.random.default_rng(9), 3, 4, segments=[7, 3])
    with pytest.raises(TrainerRefusal, match="malformed_row"):
        learner.gradient([row], 0.0, Objective.of(LOSS.options()), version=7)


def test_stale_tokens_are_left_out_by_their_versions():
    loss = LOSS.options()
    masked = Objective.of(loss, AlgorithmSpec(loss=loss, correction={"type": "mask_stale", "stale_after": 1}))
    learner = make_learner(loss, "fp64")
    row = make_row(np.random.default_rng(10), 3, 4)
    found, stats = learner.gradient([_replace(row, segments=[5, 4])], 0.0, masked, version=7)
    assert torch.count_nonzero(found) == 0
    assert (stats.z, stats.clipped_sum) == (4.0, 4.0)
    found = learner.gradient([_replace(row, segments=[6, 4])], 0.0, masked, version=7)[0].clone()
    assert torch.equal(found, learner.gradient([row], 0.0, Objective.of(loss))[0])
