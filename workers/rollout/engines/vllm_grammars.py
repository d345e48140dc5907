"""Holds vLLM's replies to grammars by the masks of the torch engine, which trainers make again.

By itself vLLM would let a reply end by one id alone, whatever ids end it, and hold one that it carries on to its
grammar from the beginning. Invariant: what vLLM is told of a grammar is enough for its own checks, and every mask is
made here.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLMatcher

from workers.rollout.engines.grammars import Grammars
from workers.rollout.engines.requests import Request
from workers.rollout.engines.wire import SamplingParameters

if TYPE_CHECKING:
    import torch
    from vllm.v1.engine.llm_engine import LLMEngine


def told_of(request: Request) -> dict[str, Any] | None:
    """Return what goes beside vLLM's own parameters of a request; None where nothing holds its reply."""
    if not request.sampling.structured:
        return None
    return {
        "name": request.request_id,
        "structured": request.sampling.structured,
        "stop": list(request.stop),
        "done": list(request.done),
    }


def hold_replies(engine: "LLMEngine", folder: str, words: int) -> None:
    """Have an engine that reads the text of a model's folder make the masks here, over so many ids."""
    tokenizer = (Path(folder) / "tokenizer.json").read_bytes()
    grammars = Grammars(lambda _: tokenizer)

    def create(request: Any) -> HeldReply:
        told = request.sampling_params.extra_args
        sampling = SamplingParameters(structured=told["structured"])
        asked = Request(
            told["name"], folder, (), 0, 0, stop=tuple(told["stop"]), done=tuple(told["done"]), sampling=sampling
        )
        return HeldReply(grammars.begin(asked, words))

    manager: Any = engine.engine_core.engine_core.structured_output_manager
    manager._create_grammar = create


class HeldReply:
    """A reply under way, as vLLM's manager of structured outputs knows one."""

    def __init__(self, reply: LLMatcher) -> None:
        self._reply = reply

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Fold in what was drawn; False ends the reply: no mask could be made for it."""
        if self._reply.is_error():
            return False
        return self._reply.is_stopped() or self._reply.consume_tokens(tokens)  # stopped: only an end was left to draw

    def fill_bitmask(self, bitmask: "torch.Tensor", place: int) -> None:
        """Write the mask of the next token; beyond the limits of a grammar nothing is allowed."""
        import torch

        bits = np.frombuffer(self._reply.compute_bitmask(), np.int32)[: bitmask.shape[1]]
        bitmask[place].zero_()
        if not self._reply.is_error():
            bitmask[place, : len(bits)] = torch.from_numpy(bits.copy())

    def is_terminated(self) -> bool:
        """Never: the ids that end a reply end its request."""
        return False
