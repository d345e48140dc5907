"""A policy's weights and gradient as flat buffers.

Invariants: `compute` holds every weight once, in an order in which matrices that are applied to the same input are
neighbours, so that a decoder may take several of them as one; `fresh` is the gradient of one micro-batch in the same
order. Optimizer, clipping, accumulation and transfer are then a handful of operations, whatever the number of layers.
With bf16 weights the optimizer works on fp32 masters; otherwise master and compute are the same memory.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class FlatParameters:
    """Weights in one buffer. Leaves handed out share its memory and write their gradient into `fresh`."""

    def __init__(
        self,
        weights: "Mapping[str, torch.Tensor]",
        order: Sequence[str],
        precision: str,
        device: str,
        frozen: bool = False,
    ) -> None:
        """Frozen weights are computed with and never trained: their gradient takes no memory, and nobody adds to it."""
        import torch

        compute_dtype = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}[precision]
        master_dtype = torch.float32 if precision == "bf16" else compute_dtype
        self._shapes = {name: tuple(weights[name].shape) for name in order}
        self._offsets: dict[str, int] = {}
        size = 0
        for name in order:
            self._offsets[name] = size
            size += prod(self._shapes[name])
        self.master = torch.empty(size, dtype=master_dtype, device=device)
        self.compute = self.master if compute_dtype == master_dtype else self.master.to(compute_dtype)
        self.fresh = torch.zeros(1 if frozen else size, dtype=compute_dtype, device=device).expand(size)
        self.load(weights)

    @property
    def size(self) -> int:
        return int(self.master.numel())

    def load(self, weights: "Mapping[str, torch.Tensor]") -> None:
        """Overwrite every weight. Raises KeyError or RuntimeError when names or shapes differ."""
        if set(weights) != set(self._shapes):
            raise KeyError(f"weights differ in names: {sorted(set(weights) ^ set(self._shapes))}")
        for name, shape in self._shapes.items():
            self._slice(self.master, name).view(shape).copy_(weights[name])
        self.publish()

    def publish(self) -> None:
        """Make the compute weights follow the masters after a step."""
        if self.compute is not self.master:
            self.compute.copy_(self.master)

    def take(self, weights: "Mapping[str, torch.Tensor]") -> None:
        """Compute with given weights from now on; masters of another precision stay, being nearer to the truth."""
        for name, shape in self._shapes.items():
            self._slice(self.compute, name).view(shape).copy_(weights[name])

    def named(self) -> "dict[str, torch.Tensor]":
        """Return the compute weights by name, as views."""
        return self.split(self.compute)

    def masters(self) -> "dict[str, torch.Tensor]":
        """Return what the optimizer moves by name, as views."""
        return self.split(self.master)

    def split(self, flat: "torch.Tensor") -> "dict[str, torch.Tensor]":
        """Return the parts of a buffer in the order of the weights, by name, as views."""
        return {name: self._slice(flat, name).view(shape) for name, shape in self._shapes.items()}

    def gradient_of(self, whole: "torch.Tensor") -> "torch.Tensor":
        """Return the gradient of what is trained from that of the decoder's weights: the same."""
        return whole

    def leaf(self, *names: str) -> "torch.Tensor":
        """Return neighbouring weights stacked along their first dimension, as one leaf of the graph."""
        first = self._offsets[names[0]]
        rest = self._shapes[names[0]][1:]
        rows = 0
        for name in names:
            if self._offsets[name] != first + rows * prod(rest) or self._shapes[name][1:] != rest:
                raise ValueError(f"{names} are not neighbours of one width")
            rows += self._shapes[name][0]
        part = slice(first, first + rows * prod(rest))
        leaf = self.compute[part].view(rows, *rest).detach().requires_grad_()
        leaf.grad = self.fresh[part].view(rows, *rest)
        return leaf

    def _slice(self, flat: "torch.Tensor", name: str) -> "torch.Tensor":
        start = self._offsets[name]
        return flat[start : start + prod(self._shapes[name])]
