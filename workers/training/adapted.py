"""A policy of which only a low-rank adapter is trained, seen by the learner like any other.

The forward pass computes with whole matrices, base plus adapter; what its backward pass says of these is turned into
the adapter's own gradient by the chain rule, which is exact, since the sum is linear in each factor. So packing, losses
and decoder are those of full tuning, and only optimizer, accumulator and publications are as small as the adapter.
PEFT, which does the same to a tree of torch modules, has nothing to hold on to here, since the decoder is none; the
tests hold gradients and results against it.

Invariant: after `load`, `take` and `publish` the decoder's weights are the frozen ones plus the adapter's.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flexmarl.contracts.spec.team import Lora
from workers.models.adapter import check_adapter, parts_of
from workers.training.parameters import FlatParameters

if TYPE_CHECKING:
    import torch


class AdaptedParameters:
    """An adapter's weights in one buffer, laid over the frozen weights of a decoder."""

    def __init__(
        self, whole: FlatParameters, adapter: "Mapping[str, torch.Tensor]", lora: Lora, precision: str, device: str
    ) -> None:
        """Raises WrongAdapterError when the adapter does not fit."""
        import torch

        base = whole.masters()
        check_adapter(adapter, {name: tuple(tensor.shape) for name, tensor in base.items()}, lora)
        self._whole = whole
        self._parts = parts_of(base, lora.targets)
        self._scale = lora.scale
        self._base = {part.weight: base[part.weight].clone() for part in self._parts}
        order = [name for part in self._parts for name in (part.down, part.up)]
        self._own = FlatParameters(adapter, order, precision, device)
        self._gradient = torch.zeros_like(self._own.master)
        self._lay_over()

    @property
    def size(self) -> int:
        return self._own.size

    @property
    def master(self) -> "torch.Tensor":
        return self._own.master

    @property
    def compute(self) -> "torch.Tensor":
        return self._own.compute

    def gradient_of(self, whole: "torch.Tensor") -> "torch.Tensor":
        """Return the adapter's gradient from that of the decoder's weights; valid until the next call."""
        factors, own = self._own.masters(), self._own.split(self._gradient)
        above = self._whole.split(whole)
        for part in self._parts:
            gradient = above[part.weight]
            own[part.down].copy_(factors[part.up].t() @ gradient).mul_(self._scale)
            own[part.up].copy_(gradient @ factors[part.down].t()).mul_(self._scale)
        return self._gradient

    def publish(self) -> None:
        """Compute with the masters after a step."""
        self._own.publish()
        self._lay_over()

    def take(self, weights: "Mapping[str, torch.Tensor]") -> None:
        """Compute with a given adapter from now on; masters of another precision stay, being nearer to the truth."""
        self._own.take(weights)
        self._lay_over()

    def named(self) -> "dict[str, torch.Tensor]":
        """Return the adapter's weights by name, as views: all that a version publishes."""
        return self._own.named()

    def _lay_over(self) -> None:
        factors, whole = self._own.named(), self._whole.masters()
        for part in self._parts:
            added = factors[part.up].to(self._own.master.dtype) @ factors[part.down].to(self._own.master.dtype)
            whole[part.weight].copy_(self._base[part.weight]).add_(added, alpha=self._scale)
        self._whole.publish()
