"""The torch engine computes in the precision of the policy: how far its log-probabilities are from the trainer's."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from flexmarl.contracts.specification.team import Lora
from tests.support.chat_model import SMOLLM2, chat_home, chat_model
from tests.support.packed import last_logits
from tests.unit.workers.test_engine import finish
from workers.models import Architecture, architecture_of
from workers.models.adapter import initial_adapter
from workers.models.architecture import parse_architecture
from workers.models.weights import initial_weights
from workers.rollout.engines.requests import Finished, Request
from workers.rollout.engines.torch_engine import TorchEngine
from workers.training.adapted import LowRank
from workers.training.decoder import Decoder, parameter_order
from workers.training.parameters import FlatParameters

__all__ = ["chat_home", "chat_model"]

MOST = {"fp32": 1e-5, "bf16": 0.05}
"""Mean difference of log-probabilities between engine and trainer."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LORA = Lora(rank=4, alpha=12.0)
TINY = LlamaConfig(
    vocab_size=384, hidden_size=144, intermediate_size=256, num_hidden_layers=3, num_attention_heads=9,
    num_key_value_heads=3, head_dim=24, max_position_embeddings=256, rope_theta=100_000.0, tie_word_embeddings=True,
    initializer_range=0.08,
)  # fmt: skip
"""SmolLM2's kind with small sizes; the square root of its heads' width is no power of two."""


def tiny() -> "tuple[dict[str, torch.Tensor], Architecture]":
    torch.manual_seed(0)
    state = {name: tensor.detach().bfloat16() for name, tensor in LlamaForCausalLM(TINY).state_dict().items()}
    del state["lm_head.weight"]
    return state, parse_architecture(TINY.to_dict())


def trained(adapter: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return an adapter that changes something."""
    generator = torch.Generator().manual_seed(1)
    return {n: (t + 0.05 * torch.randn(t.shape, generator=generator)).bfloat16() for n, t in adapter.items()}


PROMPTS = [tuple(range(n + 3, 2 * n + 20)) for n in range(8)]


def gap(
    precision: str,
    state: "dict[str, torch.Tensor]",
    architecture: Architecture,
    lora: Lora | None,
    prompts: Sequence[tuple[int, ...]] = PROMPTS,
) -> float:
    """Return the mean difference over replies of an engine, to the trainer's own decoder on the same weights."""
    adapter = None if lora is None else trained(initial_adapter(state, lora, 1))
    engine = TorchEngine("cpu", 8)
    weights = engine.prepare(state, architecture, precision)
    if lora is not None and adapter is not None:
        weights = engine.adapt(weights, adapter, lora)
    engine.load("p", 0, "d", weights)
    engine.submit([Request(str(n), "p", prompt, 16, seed=n) for n, prompt in enumerate(prompts)])
    answers = list(finish(engine).values())
    parameters = FlatParameters(state, parameter_order(state.keys()), precision, "cpu", frozen=True)
    over = (
        None if lora is None or adapter is None else LowRank(parameters, adapter, lora, precision, "cpu", frozen=True)
    )
    decoder = Decoder(parameters, architecture, over)
    differences = [difference for one in answers for difference in compared(decoder, one)]
    assert len(differences) == 16 * len(prompts)
    return sum(differences) / len(differences)


def compared(decoder: Decoder, answer: Finished) -> list[float]:
    ids = [*answer.request.prompt, *answer.token_ids[:-1]]
    with torch.no_grad():
        (logits,) = last_logits(decoder, [ids], len(answer.token_ids))
    theirs = logits.float().log_softmax(-1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    return (theirs - torch.tensor(answer.logprobs)).abs().tolist()


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_gap_to_the_trainer_is_that_of_the_precision(precision: str, lora: Lora | None) -> None:
    state, architecture = tiny()
    assert gap(precision, state, architecture, lora) <= MOST[precision]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.slow
def test_the_gap_on_a_real_chat_model(precision: str, chat_model: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in initial_weights(SMOLLM2, 0, 0).items()}
    tokenizer = Tokenizer.from_str((chat_model / "tokenizer.json").read_text())
    asked = (f"<|im_start|>user\nWhat is {n} + {9 - n}?<|im_end|>\n<|im_start|>assistant\n" for n in range(5))
    prompts = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in asked]
    assert gap(precision, state, architecture_of(SMOLLM2), None, prompts) <= MOST[precision]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_and_cache_have_the_precision_and_large_matrices_stay_where_they_lie(precision: str) -> None:
    state, architecture = tiny()
    state = {name: tensor.to(DTYPES[precision]) for name, tensor in state.items()}
    state["model.embed_tokens.weight"] = state["model.embed_tokens.weight"].repeat(8, 1)
    engine = TorchEngine("cpu", 8)
    weights = engine.prepare(state, architecture, precision)
    assert weights.embedding.data_ptr() == state["model.embed_tokens.weight"].data_ptr()
    engine.load("p", 0, "d", weights)
    engine.submit([Request("a", "p", (1, 2, 3), 4, seed=0)])
    engine.step()
    (lane,) = engine._lanes["p"]
    assert {tensor.dtype for tensor in lane.tensors()} == {DTYPES[precision], torch.complex64}
