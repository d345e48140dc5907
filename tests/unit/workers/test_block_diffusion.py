"""Block diffusion: engine and trainer against plain transformers, one pass for each step of each block."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flexmarl.algorithms.aggregation import aggregation_of
from flexmarl.contracts.specification.algorithm import AlgorithmSpec
from flexmarl.contracts.specification.losses import LOSS, PolicyGradientOptions, PpoClipOptions
from flexmarl.contracts.specification.team import AdamW, FactoryModel, Lora
from workers.models import architecture_of, build_model
from workers.models.adapter import initial_adapter
from workers.models.architecture import PAD
from workers.models.weights import initial_weights
from workers.rollout.engines.requests import BadRequestError, Finished, Request
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.engines.wire import SamplingParameters
from workers.training.blocks import blocks_of
from workers.training.learner import Adapter, Learner
from workers.training.objective import Objective, evaluate
from workers.training.packing import PackedTokens, pack
from workers.training.parameters import FlatParameters
from workers.training.unrolling import MASKED_SHARE, Unrolling
from workers.training.wire import TrainRow

WORDS = 12
BLOCK = 4
SOURCE = FactoryModel(decoding="block_diffusion", block=BLOCK)
WEIGHTS = initial_weights(SOURCE, WORDS, seed=3)
ALLOWED = tuple(range(3, WORDS))
DIPO = Unrolling(BLOCK, False, 7)
AT_ONCE = Unrolling(BLOCK, True, 7)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def plain(double: bool = False) -> torch.nn.Module:
    """Return the same weights as transformers computes them."""
    model = build_model(FactoryModel(), tuple(f"w{n}" for n in range(WORDS)), 3)
    model.load_state_dict(WEIGHTS)
    model.get_input_embeddings().padding_idx = None  # the mask is a word that is learned
    return model.double() if double else model


def engine(source: FactoryModel = SOURCE, rows: int = 16) -> TorchEngine:
    made = TorchEngine("cpu", rows)
    made.load("p", 0, "d", made.prepare(dict(WEIGHTS), architecture_of(source)))
    return made


def asked(count: int, most: int = 10, temperature: float = 0.8) -> list[Request]:
    rng = np.random.default_rng(count)
    return [
        Request(
            str(n), "p", tuple(rng.integers(1, WORDS, 1 + n % 7).tolist()), 1 + n % most, int(rng.integers(2**60)),
            temperature, ALLOWED,
        )
        for n in range(count)
    ]  # fmt: skip


def finish(made: TorchEngine, requests: list[Request]) -> dict[str, Finished]:
    made.submit(requests)
    found: dict[str, Finished] = {}
    while made.busy:
        found |= {one.request.request_id: one for one in made.step()}
    return found


def blocks(prompt: int, tokens: int) -> torch.Tensor:
    """Return the number of each token's block, of a row whose reply has so many tokens."""
    first = -(-prompt // BLOCK)
    return torch.tensor([n // BLOCK for n in range(prompt)] + [first + n // BLOCK for n in range(tokens)])


def step_by_step(
    model: torch.nn.Module, prompt: list[int], reply: list[int], steps: list[int], temperature: float
) -> torch.Tensor:
    """Return the log-probability of each token in the step that revealed it: a pass for each step of each block."""
    found: dict[int, torch.Tensor] = {}
    for start in range(0, len(reply), BLOCK):
        own = range(start, min(start + BLOCK, len(reply)))
        for step in sorted({steps[n] for n in own}):
            shown = [reply[n] if n < start or steps[n] < step else PAD for n in range(own.stop)]
            of = blocks(len(prompt), own.stop)
            logits = seen_by(model, [*prompt, *shown], of[None, :] <= of[:, None])[len(prompt) :]
            logits[:, [n for n in range(WORDS) if n not in ALLOWED]] = -torch.inf
            logs = (logits / temperature).log_softmax(-1)
            found |= {n: logs[n, reply[n]] for n in own if steps[n] == step}
    return torch.stack([found[n] for n in range(len(reply))])


def seen_by(model: torch.nn.Module, ids: list[int], visible: torch.Tensor) -> torch.Tensor:
    kind = next(model.parameters()).dtype
    mask = torch.zeros(visible.shape, dtype=kind).masked_fill(~visible, torch.finfo(kind).min)[None, None]
    found: torch.Tensor = model(torch.tensor([ids]), attention_mask=mask).logits[0].clone()
    return found


def row_of(answer: Finished, advantage: float = 1.0) -> TrainRow:
    given = answer.request
    return TrainRow(
        np.array(given.prompt, "<i4").tobytes(), np.array(answer.token_ids, "<i4").tobytes(),
        np.array(answer.logprobs, "<f4").tobytes(), np.array(given.allowed, "<i4").tobytes(), given.temperature,
        [advantage], 1.0, steps=np.array(answer.steps, "<i2").tobytes(),
    )  # fmt: skip


def learner(loss: object = PolicyGradientOptions(), precision: str = "fp32", unrolling: Unrolling = DIPO) -> Learner:
    objective = Objective.of(loss)  # type: ignore[arg-type]
    return Learner(WEIGHTS, architecture_of(SOURCE), objective, AdamW(), precision, epoch="0:a", unrolling=unrolling)


def packed(
    rows: list[TrainRow], unrolling: Unrolling = DIPO, version: int = 0, budget: int = 2**20
) -> list[PackedTokens]:
    aggregate = aggregation_of(LOSS.options())
    return pack(blocks_of(rows, aggregate, WORDS, version, unrolling=unrolling), WORDS, budget)


def said(own: Learner, row: TrainRow, unrolling: Unrolling = DIPO, version: int = 0) -> torch.Tensor:
    """Return the log-probabilities of a row's tokens."""
    [batch] = packed([row], unrolling, version)
    return own.decoder.scores(batch)[0][torch.from_numpy(batch.table[0])]


def random_row(rng: np.random.Generator, tokens: int, steps: int = BLOCK, prompt: int = 5) -> TrainRow:
    map_ = rng.integers(0, steps, tokens)
    return TrainRow(
        rng.integers(1, WORDS, prompt).astype("<i4").tobytes(), rng.choice(ALLOWED, tokens).astype("<i4").tobytes(),
        np.full(tokens, -2.0, "<f4").tobytes(), np.array(ALLOWED, "<i4").tobytes(), 0.8, [float(rng.normal())], 1.0,
        steps=map_.astype("<i2").tobytes(),
    )  # fmt: skip


def ids(content: bytes) -> list[int]:
    return np.frombuffer(content, "<i4").tolist()


@pytest.mark.parametrize("settings", [{}, {"confidence": None}, {"denoising_steps": 2, "confidence": 0.3}])
def test_engine_and_trainer_say_what_each_step_said(settings: dict[str, float | None]) -> None:
    source = SOURCE.model_copy(update=settings)
    answers = finish(engine(source), asked(24))
    model, own = plain(), learner()
    assert len(answers) == 24
    for answer in answers.values():
        given, steps = answer.request, list(answer.steps)
        assert (len(answer.token_ids), len(steps), answer.reason) == (given.max_tokens, given.max_tokens, "length")
        assert set(answer.token_ids) <= set(ALLOWED)
        assert max(steps) < source.denoising_steps
        with torch.no_grad():
            expected = step_by_step(model, list(given.prompt), answer.token_ids, steps, given.temperature)
            trained = said(own, row_of(answer))
        assert torch.allclose(torch.tensor(answer.logprobs), expected, atol=2e-5)
        assert torch.allclose(trained, expected, atol=2e-5)


def test_an_adapter_has_the_log_probabilities_of_its_engine() -> None:
    lora = Lora(rank=4)
    torch.manual_seed(1)
    adapter = {name: 0.1 * torch.randn_like(tensor) for name, tensor in initial_adapter(WEIGHTS, lora, 1).items()}
    made = TorchEngine("cpu", 16)
    base = made.prepare(dict(WEIGHTS), architecture_of(SOURCE))
    made.load("p", 0, "d", made.adapt(base, adapter, lora))
    objective = Objective.of(PolicyGradientOptions())
    own = Learner(WEIGHTS, architecture_of(SOURCE), objective, AdamW(), adapter=Adapter(lora, adapter), unrolling=DIPO)
    for answer in finish(made, asked(12)).values():
        with torch.no_grad():
            trained, plainly = said(own, row_of(answer)), said(learner(), row_of(answer))
        assert torch.allclose(trained, torch.tensor(answer.logprobs), atol=2e-5)
        assert not torch.allclose(trained, plainly, atol=1e-3)


@pytest.mark.parametrize("unrolling", [DIPO, AT_ONCE])
def test_in_bf16_packs_are_filled_up_with_what_no_token_sees(unrolling: Unrolling) -> None:
    rng = np.random.default_rng(8)
    rows = [random_row(rng, int(rng.integers(1, 11)), prompt=int(rng.integers(1, 9))) for _ in range(12)]
    objective = Objective.of(PolicyGradientOptions())
    exact, rough = (
        learner(PolicyGradientOptions(), precision, unrolling).gradient(rows, 0.0, objective, 0)[0]
        for precision in ("fp32", "bf16")
    )
    assert float((exact - rough).norm() / exact.norm()) < 0.05


def test_a_step_reveals_the_most_certain_and_all_above_the_threshold() -> None:
    by_number = finish(engine(SOURCE.model_copy(update={"confidence": None})), asked(12, most=1))
    assert all(list(one.steps) == [0] for one in by_number.values())
    request = [replace(one, max_tokens=BLOCK) for one in asked(12)]
    alone = finish(engine(SOURCE.model_copy(update={"confidence": None})), request)
    assert all(sorted(one.steps) == list(range(BLOCK)) for one in alone.values()), "one token in each step"
    at_once = finish(engine(SOURCE.model_copy(update={"confidence": 1e-6})), request)
    assert all(list(one.steps) == [0] * BLOCK for one in at_once.values())
    in_one = finish(engine(SOURCE.model_copy(update={"denoising_steps": 1, "confidence": None})), request)
    assert [one.token_ids for one in in_one.values()] == [one.token_ids for one in at_once.values()]
    for name, one in alone.items():
        first = int(np.argmin(list(one.steps)))
        assert one.logprobs[first] == pytest.approx(max(at_once[name].logprobs)), "the most certain comes first"
        assert one.token_ids[first] == at_once[name].token_ids[first]


def test_a_reply_depends_on_its_request_alone_and_is_handed_back_whole() -> None:
    requests = asked(20)
    together = finish(engine(rows=16), requests)
    for request in requests[::5]:
        alone = finish(engine(), [request])[request.request_id]
        other = together[request.request_id]
        assert (alone.token_ids, list(alone.steps)) == (other.token_ids, list(other.steps))
    made, long = engine(), replace(requests[0], max_tokens=12)
    made.submit([long])
    for _ in range(6):
        assert made.step() == []
    [ended] = made.abort({long.request_id})
    assert (ended.reason, ended.token_ids, ended.logprobs, list(ended.steps)) == ("abort", [], [], [])
    assert not made.busy
    assert finish(made, [long])[long.request_id].token_ids == finish(engine(), [long])[long.request_id].token_ids


def test_greedy_replies_are_the_likeliest_at_each_step() -> None:
    for answer in finish(engine(), asked(6, temperature=0.0)).values():
        with torch.no_grad():
            logs = step_by_step(plain(), list(answer.request.prompt), answer.token_ids, list(answer.steps), 1.0)
        assert torch.allclose(torch.tensor(answer.logprobs), logs, atol=2e-5)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("stop", {"stop": (4,)}),
        ("sampling", {"sampling": SamplingParameters(top_p=0.9)}),
        ("follow", {"follow": "resume"}),
        ("done", {"done": (4,), "done_logprobs": (-1.0,), "done_segments": (0, 1)}),
    ],
)
def test_an_engine_refuses_what_needs_replies_from_left_to_right(field: str, change: dict[str, object]) -> None:
    made = engine()
    good, bad = replace(asked(1)[0], max_tokens=5), replace(asked(1)[0], request_id="bad", max_tokens=5, **change)
    with pytest.raises(BadRequestError, match=f"^{field}: ") as refused:
        made.submit([good, bad])
    assert refused.value.request_ids == ["bad"]
    assert not made.busy


def test_restart_turn_begins_a_reply_anew_on_newer_weights() -> None:
    made, newer = engine(), {name: 1.01 * tensor for name, tensor in WEIGHTS.items()}
    [request] = asked(1)
    request = replace(request, max_tokens=8, follow="restart_turn", version=0)
    made.submit([request])
    made.step()
    made.load("p", 1, "e", made.prepare(newer, architecture_of(SOURCE)))
    found: list[Finished] = []
    while made.busy:
        found += made.step()
    [answer] = found
    assert (answer.segments, len(answer.steps)) == ([1, 8], 8)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_one_token_in_each_step_is_the_factorisation_in_that_order(order: tuple[int, ...]) -> None:
    row = random_row(np.random.default_rng(2), BLOCK)
    row.steps = np.array(order, "<i2").tobytes()
    prompt, reply, model = ids(row.prompt), ids(row.response), plain()
    with torch.no_grad():
        found = said(learner(), row)
        for place in sorted(range(BLOCK), key=order.__getitem__):
            shown = [reply[n] if order[n] < order[place] else PAD for n in range(BLOCK)]
            of = blocks(len(prompt), BLOCK)
            logits = seen_by(model, [*prompt, *shown], of[None, :] <= of[:, None])[len(prompt) + place]
            logits[[n for n in range(WORDS) if n not in ALLOWED]] = -torch.inf
            assert found[place] == pytest.approx((logits / 0.8).log_softmax(-1)[reply[place]].item(), abs=2e-5)


def test_at_once_the_same_masks_give_the_ratio_one_and_others_do_not() -> None:
    rng = np.random.default_rng(3)
    rows = [random_row(rng, 6, prompt=40) for _ in range(4)]
    own = learner(unrolling=AT_ONCE)
    with torch.no_grad():
        for row in rows:
            now, again = said(own, row, AT_ONCE), said(own, row, AT_ONCE)
            assert bool(((now - again).exp() == 1.0).all())
            others = (said(own, row, AT_ONCE, version=1), said(own, row, replace(AT_ONCE, seed=8)))
            assert all(not torch.equal(now, other) for other in others)
    sights = [(AT_ONCE.sight(row), row) for row in rows]
    given = [ids(AT_ONCE.input_of(row, sight, 0)) for sight, row in sights]
    assert all(own[40:] == [PAD] * 6 for own in given)
    shares = [np.mean([one == PAD for one in ids(AT_ONCE.input_of(rows[0], sights[0][0], n))[:40]]) for n in range(200)]
    assert np.mean(shares) == pytest.approx(MASKED_SHARE, abs=4 * (0.15 * 0.85 / 8000) ** 0.5)


def test_at_once_no_ratio_is_one_of_the_engines() -> None:
    rng = np.random.default_rng(4)
    rows = [random_row(rng, 4) for _ in range(5)]
    own = learner(PpoClipOptions(), "fp64", AT_ONCE)
    [batch] = packed(rows, AT_ONCE)
    _, figures = evaluate(own.decoder, batch, Objective.of(PpoClipOptions()), 0.0)
    assert (figures.kl_update, figures.kl_engine, figures.logprob_gap, figures.clipped) == (0.0, 0.0, 0.0, 0.0)
    [mixed] = packed(rows, DIPO)
    _, figures = evaluate(own.decoder, mixed, Objective.of(PpoClipOptions()), 0.0)
    assert figures.logprob_gap > 0.1


def test_unchanged_weights_have_the_ratio_one_to_their_engine_and_no_update_moves_it() -> None:
    rows = [row_of(answer) for answer in finish(engine(), asked(16)).values()]
    own = learner(PpoClipOptions())
    stats = own.accumulate("0:a", 0, b"", rows, 0.0, version=0)
    assert stats.logprob_gap_max < 2e-5
    near = learner()
    algorithm = AlgorithmSpec.model_validate({"kl": {"coefficient": 1.0}})
    [batch] = packed(rows)
    _, figures = evaluate(own.decoder, batch, Objective.of(algorithm.loss, algorithm), 0.0, near.decoder)
    assert figures.kl_reference == 0.0, "the reference sees the same copies"


@pytest.mark.parametrize("unrolling", [DIPO, AT_ONCE])
def test_the_gradient_is_that_of_the_plain_passes(unrolling: Unrolling) -> None:
    rng = np.random.default_rng(5)
    rows = [random_row(rng, tokens) for tokens in (2, 4, 7)]
    own = learner(PolicyGradientOptions(), "fp64", unrolling)
    gradient, stats = own.gradient(rows, 0.0, Objective.of(PolicyGradientOptions()), 0)
    model = plain(double=True)
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        prompt, reply = ids(row.prompt), ids(row.response)
        if unrolling is DIPO:
            logs = step_by_step(model, prompt, reply, np.frombuffer(row.steps, "<i2").tolist(), 0.8)
        else:
            of = blocks(len(prompt), len(reply))
            given = ids(AT_ONCE.input_of(row, AT_ONCE.sight(row), 0))
            logits = seen_by(model, given, of[None, :] <= of[:, None])[len(prompt) :]
            logits[:, [n for n in range(WORDS) if n not in ALLOWED]] = -torch.inf
            logs = (logits / 0.8).log_softmax(-1)[torch.arange(len(reply)), torch.tensor(reply)]
        total = total - row.advantages[0] * logs.sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert stats.loss_sum == pytest.approx(total.item(), rel=1e-6)
    expected = {name: tensor.grad for name, tensor in model.named_parameters()}
    found = own.parameters.split(gradient)
    assert isinstance(own.parameters, FlatParameters)
    for name, tensor in found.items():
        assert torch.allclose(tensor, expected[name], rtol=1e-5, atol=1e-5), name  # the library norms in fp32


@pytest.mark.parametrize("unrolling", [DIPO, AT_ONCE])
def test_no_row_feels_its_neighbours(unrolling: Unrolling) -> None:
    rng = np.random.default_rng(6)
    rows = [random_row(rng, int(rng.integers(1, 11)), prompt=int(rng.integers(1, 9))) for _ in range(20)]
    own = learner(PolicyGradientOptions(), "fp64", unrolling)
    objective = Objective.of(PolicyGradientOptions())
    whole = own.gradient(rows, 0.1, objective, 0)[0].clone()
    parts = sum(own.gradient([row], 0.1, objective, 0)[0].clone() for row in rows)
    assert torch.allclose(whole, parts, atol=1e-12)
    assert len(packed(rows, unrolling, budget=64)) > 2
