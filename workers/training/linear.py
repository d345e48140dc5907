"""Neighbouring matrices of a decoder applied as one, and what an adapter adds to them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workers.training.adapted import LowRank
from workers.training.parameters import FlatParameters

if TYPE_CHECKING:
    import torch


class Linear:
    def __init__(
        self, parameters: FlatParameters, modules: Sequence[str], biased: bool, adapter: LowRank | None
    ) -> None:
        """`modules` are the names of the matrices without what they end in."""
        names = [f"{module}.weight" for module in modules]
        self._weight = parameters.leaf(*names)
        self._bias = parameters.leaf(*(f"{module}.bias" for module in modules)) if biased else None
        self._rows = [parameters.shape(name)[0] for name in names]
        self._added = [None if adapter is None else adapter.factors(name) for name in names]
        self._scale = 0.0 if adapter is None else adapter.scale

    def __call__(self, x: "torch.Tensor") -> "torch.Tensor":
        import torch
        from torch.nn import functional as F

        y = F.linear(x, self._weight, self._bias)
        if not any(self._added):
            return y
        parts = [
            part if factors is None else part + self._scale * F.linear(F.linear(x, factors.down), factors.up)
            for part, factors in zip(torch.split(y, self._rows, -1), self._added, strict=True)
        ]
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]
