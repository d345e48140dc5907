"""vLLM's sampling parameters on a real chat model: the distribution is that of transformers' processors, stop strings
cut where they stand, and structured replies are what they must be.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tests.support.chat_model import SMOLLM2, chat_home, chat_model
from tests.support.engines import RunningEngine, needs_vllm, running_engine
from tests.unit.workers.test_engine_processors import GRID, plainly
from workers.models.weights import initial_weights

__all__ = ["chat_home", "chat_model"]

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(900)]

QUESTION = "The capital of France is Paris. The capital of Italy is"
STRUCTURED = {
    "choice": {"type": "choice", "choices": ["Rome", "Milan"]},
    "regex": {"type": "regex", "pattern": "[0-9]{3}"},
    "json_schema": {
        "type": "json_schema",
        "of": {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"],
               "additionalProperties": False},
    },
}  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path, chat_model: Path) -> Iterator[RunningEngine]:
    listener = {"policy": "chat", "trainable": False, "sampling": {"structured": STRUCTURED["choice"]}}
    home = tmp_path / "home"
    home.mkdir()
    link = tmp_path / "model"
    link.mkdir()
    for file in chat_model.iterdir():
        (link / file.name).write_bytes(file.read_bytes())
    more = {"chat": {"model": {"type": "folder", "path": str(link)}}}
    with running_engine("vllm", home, more=more, listener=listener) as running:
        yield running


def test_sampling_parameters_on_a_real_vocabulary(engine: RunningEngine, chat_model: Path) -> None:
    digest = engine.plane.put(initial_weights(SMOLLM2, 0, 0)).digest
    asyncio.run(engine.load("chat", 0, digest))
    tokenizer = Tokenizer.from_str((chat_model / "tokenizer.json").read_text())
    prompt = tokenizer.encode(QUESTION).ids
    model = LlamaForCausalLM.from_pretrained(chat_model, dtype=torch.float32)

    def ask(tokens: int, sampling: dict[str, Any], seed: int = 0, **more: object) -> Any:
        asked = {"prompt": [prompt], "max_tokens": tokens, "seeds": [seed], "sampling": sampling, **more}
        return asyncio.run(engine.complete(model="chat", version=0, digest=digest, **asked))[0]

    for number, asked in enumerate(GRID):
        sampling = {name: getattr(asked, name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
        choice = ask(4, sampling, seed=number, temperature=0.8)
        ids = [*prompt, *choice.token_ids]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits
        for at, logprob in enumerate(choice.logprobs, start=len(prompt)):
            expected = plainly(asked, 0.8)(torch.tensor([ids[:at]]), logits[:, at - 1]).log_softmax(-1)
            assert logprob == pytest.approx(float(expected[0, ids[at]]), abs=2e-3), asked

    whole = ask(40, {}, seed=3)
    texts = [tokenizer.decode(whole.token_ids[: n + 1], skip_special_tokens=False) for n in range(40)]
    stop = texts[-1][len(texts[-1]) // 2 :][:6]
    first = next(n for n, text in enumerate(texts) if stop in text)
    cut = ask(40, {"stop": [stop]}, seed=3)
    assert (cut.token_ids, cut.finish_reason) == (whole.token_ids[: first + 1], "stop")
    assert cut.logprobs == pytest.approx(whole.logprobs[: first + 1], abs=1e-4)

    (end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False).ids
    for name, structured in STRUCTURED.items():
        choice = ask(60, {"structured": json.dumps(structured)}, temperature=0.0, stop_token_ids=[end])
        assert choice.finish_reason == "stop", name
        text = tokenizer.decode(choice.token_ids, skip_special_tokens=True)
        match name:
            case "choice":
                assert text in STRUCTURED["choice"]["choices"]
            case "regex":
                assert re.fullmatch("[0-9]{3}", text)
            case _:
                assert isinstance(json.loads(text)["n"], bool)
