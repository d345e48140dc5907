"""A policy's weights and gradient as flat buffers.

Invariants: `compute` holds every weight once, in an order in which matrices that are applied to the same input are
neighbours, so that a decoder may take several of them as one; `fresh` is the gradient in the same order, in the
precision of the masters; each backward pass adds to it. Optimizer, clipping, accumulation and transfer
are then a handful of operations, whatever the number of layers. With bf16 weights the optimizer works on fp32 masters,
so that a step smaller than a weight's last digit is not lost; otherwise master and compute are the same memory. Frozen
weights have no master of their own and no gradient.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from workers.models.products import widen

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
        """Frozen weights are computed with and never trained."""
        import torch

        widen(precision, device)
        compute_dtype = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}[precision]
        master_dtype = torch.float32 if precision == "bf16" and not frozen else compute_dtype
        self._shapes = {name: tuple(weights[name].shape) for name in order}
        self._offsets: dict[str, int] = {}
        size = 0
        for name in order:
            self._offsets[name] = size
            size += prod(self._shapes[name])
        self.master = torch.empty(size, dtype=master_dtype, device=device)
        self.compute = self.master if compute_dtype == master_dtype else self.master.to(compute_dtype)
        self.fresh = torch.zeros(0 if frozen else size, dtype=master_dtype, device=device)
        self._frozen = frozen
        self.precision = precision
        self.load(weights)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    @property
    def names(self) -> Sequence[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

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

    def split(self, flat: "torch.Tensor") -> "dict[str, torch.Tensor]":
        """Return the parts of a buffer in the order of the weights, by name, as views."""
        return {name: self._slice(flat, name).view(shape) for name, shape in self._shapes.items()}

    def leaf(self, *names: str) -> "torch.Tensor":
        """Return neighbouring weights stacked along their first dimension, as one leaf of the graph."""
        return self._leaf(self.compute, *names)

    def exact_leaf(self, name: str) -> "torch.Tensor":
        """Return a weight's master as a leaf: for sums of so many terms that another precision would lose some."""
        return self._leaf(self.master, name)

    def _leaf(self, flat: "torch.Tensor", *names: str) -> "torch.Tensor":
        first = self._offsets[names[0]]
        rest = self._shapes[names[0]][1:]
        rows = 0
        for name in names:
            if self._offsets[name] != first + rows * prod(rest) or self._shapes[name][1:] != rest:
                raise ValueError(f"{names} are not neighbours of one width")
            rows += self._shapes[name][0]
        part = slice(first, first + rows * prod(rest))
        leaf = flat[part].view(rows, *rest).detach()
        if self._frozen:
            return leaf
        leaf.requires_grad_()
        gradient = self.fresh[part].view(rows, *rest)
        if leaf.dtype == gradient.dtype:
            leaf.grad = gradient
        else:
            leaf.register_post_accumulate_grad_hook(partial(_hand_over, gradient))  # type: ignore[no-untyped-call]
        return leaf

    def _slice(self, flat: "torch.Tensor", name: str) -> "torch.Tensor":
        start = self._offsets[name]
        return flat[start : start + prod(self._shapes[name])]


def _hand_over(gradient: "torch.Tensor", leaf: "torch.Tensor") -> None:
    """Add what a backward pass says of a leaf to a gradient of another precision."""
    if leaf.grad is not None:
        gradient.add_(leaf.grad)
    leaf.grad = None
