"""Words a row may say and words that end it, as a small table of the different rules in use.

Thousands of requests share a handful of rules, so a rule is written once and rows carry its number. Rule 0 allows every
word and stops at none.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from workers.rollout.engines.layout import Ints
from workers.rollout.engines.requests import Request

if TYPE_CHECKING:
    import torch

Bools = npt.NDArray[np.bool_]

KEPT_RULES = 64
"""More rules than this are forgotten as soon as no row needs any."""


class WordRules:
    def __init__(self, vocabulary: int, device: str) -> None:
        import torch

        self._vocabulary = vocabulary
        self._device = device
        self._numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._masks = torch.zeros(1, vocabulary, device=device)
        self._stops: Bools = np.zeros((1, vocabulary), np.bool_)
        self.forget(0)

    def forget(self, above: int = KEPT_RULES) -> None:
        """Drop all rules when there are too many; only while no row carries one."""
        if len(self._numbers) <= above and self._numbers:
            return
        self._numbers = {((), ()): 0}
        self._masks, self._stops = self._masks[:1], self._stops[:1]

    def number(self, request: Request) -> int:
        """Return the number of a request's rule, written down when it is new."""
        key = (request.allowed, request.stop)
        found = self._numbers.get(key)
        return self._add(key) if found is None else found

    def restrict(self, logits: "torch.Tensor", rules: Ints) -> "torch.Tensor":
        """Mask what rows may not say, in place."""
        import torch

        first = int(rules[0])
        if (rules == first).all():
            return logits if first == 0 else logits.add_(self._masks[first])
        return logits.add_(self._masks[torch.from_numpy(rules).to(self._device)])

    def stopped(self, tokens: Ints, rules: Ints) -> Bools:
        """Return whose token ends its reply."""
        return self._stops[rules, tokens]

    def _add(self, key: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
        import torch

        allowed, stop = key
        mask = torch.zeros(1, self._vocabulary)
        if allowed:
            mask.fill_(-torch.inf)
            mask[0, list(allowed)] = 0.0
        stops = np.zeros((1, self._vocabulary), np.bool_)
        stops[0, list(stop)] = True
        self._masks = torch.cat([self._masks, mask.to(self._device)])
        self._stops = np.concatenate([self._stops, stops])
        self._numbers[key] = len(self._numbers)
        return self._numbers[key]
