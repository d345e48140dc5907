"""The parameters of the field against the processors of transformers, alone, together and inside the torch engine."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flexmarl.contracts.specification.team import FactoryModel
from tests.support.chat_model import SMOLLM2, chat_home, chat_model
from tests.unit.workers.test_engine import WORDS, finish
from workers.models import architecture_of, build_model
from workers.models.weights import initial_weights
from workers.rollout.engines.processors import penalise, truncate
from workers.rollout.engines.requests import BadRequestError, Request
from workers.rollout.engines.torch_engine import TorchEngine
from workers.rollout.engines.wire import SamplingParameters

__all__ = ["chat_home", "chat_model"]

GRID = [
    SamplingParameters(top_p=top_p, top_k=top_k, min_p=min_p, repetition_penalty=penalty)
    for top_p, top_k, min_p, penalty in itertools.product((1.0, 0.6), (0, 5), (0.0, 0.05), (1.0, 1.3))
]


def plainly(asked: SamplingParameters, temperature: float) -> LogitsProcessorList:
    """Return the processors of transformers in vLLM's order."""
    found = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(asked.repetition_penalty)])
    found.append(TemperatureLogitsWarper(temperature))
    if asked.min_p:
        found.append(MinPLogitsWarper(asked.min_p))
    if asked.top_k:
        found.append(TopKLogitsWarper(asked.top_k))
    if asked.top_p < 1.0:
        found.append(TopPLogitsWarper(asked.top_p))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_truncation_is_that_of_transformers_row_by_row(temperature: float) -> None:
    torch.manual_seed(3)
    logits = 3.0 * torch.randn(len(GRID), 50)
    said = torch.randint(0, 50, (len(GRID), 12))
    expected = torch.cat(
        [plainly(asked, temperature)(said[[row]], logits[[row]]) for row, asked in enumerate(GRID)]
    ).log_softmax(-1)
    found = logits.clone()
    for row, asked in enumerate(GRID):
        penalise(found[row], said[row].tolist(), asked.repetition_penalty)
    figures = torch.tensor([[temperature, asked.min_p, asked.top_k, asked.top_p] for asked in GRID]).T
    found = (truncate(found, figures[0], figures[1], figures[2].long(), figures[3]) / temperature).log_softmax(-1)
    assert torch.equal(found.isneginf(), expected.isneginf())
    assert expected.isneginf().any(-1).sum() == sum(asked.truncates for asked in GRID)
    kept = ~expected.isneginf()
    assert torch.allclose(found[kept], expected[kept], atol=1e-5)


def test_the_likeliest_token_always_stays() -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0], [2.0, 2.0, 2.0]])
    strict = torch.tensor([1e-6, 1e-6])
    found = truncate(logits, torch.ones(2), torch.ones(2), torch.tensor([1, 1]), strict)
    assert (~found.isneginf()).tolist()[0] == [False, True, False]
    assert (~found.isneginf())[1].any()


def test_an_engine_draws_from_the_processed_distribution_and_records_its_logprobs() -> None:
    source = FactoryModel()
    model = build_model(source, WORDS, seed=1)
    engine = TorchEngine("cpu", 32)
    engine.load("p", 0, "d", engine.prepare(model.state_dict(), architecture_of(source)))
    requests = [
        Request(f"{n}", "p", (1, 5 + n % 20, 7), 12, seed=n, temperature=(1.0, 0.7)[n % 2], sampling=asked,
                allowed=tuple(range(3, 30)) if n % 3 else ())
        for n, asked in enumerate(GRID)
    ]  # fmt: skip
    engine.submit(requests)
    for answer in finish(engine).values():
        asked, ids = answer.request, [*answer.request.prompt]
        for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[:, -1]
            if asked.allowed:
                mask = torch.full_like(logits, -torch.inf)
                mask[:, list(asked.allowed)] = 0.0
                logits = logits + mask
            expected = plainly(asked.sampling, asked.temperature)(torch.tensor([ids]), logits).log_softmax(-1)
            assert logprob == pytest.approx(float(expected[0, token]), abs=1e-4)
            ids.append(token)


def test_greedy_replies_heed_the_penalty_alone() -> None:
    engine = TorchEngine("cpu", 8)
    model = build_model(FactoryModel(), WORDS, seed=1)
    engine.load("p", 0, "d", engine.prepare(model.state_dict(), architecture_of(FactoryModel())))
    plain, truncated, penalised = (
        SamplingParameters(),
        SamplingParameters(top_k=2),
        SamplingParameters(repetition_penalty=4.0),
    )
    engine.submit(
        [Request(name, "p", (1, 5, 7), 12, seed=0, temperature=0.0, sampling=sampling)
         for name, sampling in (("plain", plain), ("truncated", truncated), ("penalised", penalised))]
    )  # fmt: skip
    done = finish(engine)
    assert (done["truncated"].token_ids, done["truncated"].logprobs) == (
        done["plain"].token_ids,
        done["plain"].logprobs,
    )
    assert done["penalised"].token_ids != done["plain"].token_ids


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (SamplingParameters(top_p=0.0), "top_p: 0.0 is not above 0 and at most 1"),
        (SamplingParameters(top_k=-1), "top_k: -1 is not at least 0"),
        (SamplingParameters(min_p=1.5), "min_p: 1.5 is not between 0 and 1"),
        (SamplingParameters(repetition_penalty=0.0), "repetition_penalty: 0.0 is not above 0"),
        (SamplingParameters(stop=("",)), "stop"),
        (SamplingParameters(stop=("\n",)), "stop: the model of p has no tokenizer of text"),
        (SamplingParameters(structured='{"type": "regex"}'), "structured: needs an id that ends a whole reply"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(wrong: SamplingParameters, named: str) -> None:
    engine = TorchEngine("cpu", 8)
    model = build_model(FactoryModel(), WORDS, seed=1)
    engine.load("p", 0, "d", engine.prepare(model.state_dict(), architecture_of(FactoryModel())))
    with pytest.raises(BadRequestError) as refused:
        engine.submit([Request("a", "p", (1, 5), 4, seed=0, sampling=wrong)])
    assert str(refused.value).startswith(named)
    assert not engine.busy


@pytest.mark.slow
def test_a_reply_ends_with_the_token_that_completes_a_stop_string(chat_model: Path) -> None:
    """On a real vocabulary: as plain replies, cut behind the first token whose text holds the string."""
    from tokenizers import Tokenizer

    body = (chat_model / "tokenizer.json").read_bytes()
    tokenizer = Tokenizer.from_str(body.decode())
    engine = TorchEngine("cpu", 8, tokenizer_of=lambda _: body)
    # fp32: how many replies are in generation rounds otherwise, and in bf16 that now and then draws another token.
    engine.load("p", 0, "d", engine.prepare(initial_weights(SMOLLM2, 0, 0), architecture_of(SMOLLM2), "fp32"))
    prompt = tuple(tokenizer.encode("The capital of France is Paris. The capital of Italy is").ids)
    rng = np.random.default_rng(0)
    seeds = rng.integers(0, 2**31, 6).tolist()

    def replies(sampling: SamplingParameters) -> list[tuple[list[int], str]]:
        engine.submit([Request(f"{n}", "p", prompt, 24, seed=seed, sampling=sampling) for n, seed in enumerate(seeds)])
        done = finish(engine)
        return [(done[f"{n}"].token_ids, done[f"{n}"].reason) for n in range(len(seeds))]

    stops = (". The", "e,", "\n\n")
    cut = 0
    for (ids, reason), (whole, _) in zip(
        replies(SamplingParameters(stop=stops)), replies(SamplingParameters()), strict=True
    ):
        texts = [tokenizer.decode(whole[: n + 1], skip_special_tokens=False) for n in range(len(whole))]
        first = next((n for n, text in enumerate(texts) if any(stop in text for stop in stops)), None)
        assert ids == (whole if first is None else whole[: first + 1])
        assert reason == ("length" if first is None else "stop")
        cut += first is not None
    assert cut, "none of these replies holds a stop string"
