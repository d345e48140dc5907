"""The rows of a lane whose replies are held to a grammar: their masks, and those that no mask can be made for."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher

from workers.rollout.engines.layout import Ints
from workers.rollout.engines.requests import Request

if TYPE_CHECKING:
    import torch

Begin = Callable[[Request, int], LLMatcher]
"""Request, words of its model -> where its reply stands."""


class HeldRows:
    """Each row is known by its request, wherever it moves."""

    def __init__(self, words: int, begin: Begin) -> None:
        self._words = words
        self._begin = begin
        self._replies: dict[str, LLMatcher] = {}

    def add(self, requests: Iterable[Request]) -> None:
        """Take in rows that begin, or go on behind what they have."""
        for request in requests:
            if request.sampling.structured:
                self._replies[request.request_id] = self._begin(request, self._words)

    def restrict(self, logits: "torch.Tensor", requests: Sequence[Request]) -> "torch.Tensor":
        """Mask what rows may not say, in place; a row beyond the limits of its grammar becomes no numbers."""
        import torch

        if not self._replies:
            return logits
        for row, request in enumerate(requests):
            if (reply := self._replies.get(request.request_id)) is None:
                continue
            bits = np.frombuffer(reply.compute_bitmask(), np.uint8)
            if reply.is_error():
                logits[row] = torch.nan
                continue
            refused = np.unpackbits(bits, count=self._words, bitorder="little") == 0
            logits[row].masked_fill_(torch.from_numpy(refused).to(logits.device), -torch.inf)
        return logits

    def append(self, tokens: Ints, requests: Sequence[Request]) -> None:
        """Fold in one token per row."""
        if self._replies:
            for request, token in zip(requests, tokens, strict=True):
                if (reply := self._replies.get(request.request_id)) is not None and not reply.is_error():
                    reply.consume_token(int(token))

    def too_complex(self, request: Request) -> bool:
        """Whether no mask could be made for a row's next token."""
        reply = self._replies.get(request.request_id)
        return reply is not None and reply.is_error()

    def keep(self, requests: Sequence[Request]) -> None:
        """Forget all rows but these."""
        if self._replies:
            live = {request.request_id for request in requests}
            self._replies = {name: reply for name, reply in self._replies.items() if name in live}
