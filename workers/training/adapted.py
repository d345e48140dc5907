"""A policy of which only a low-rank adapter is trained: its weights, and the frozen ones beneath it.

The decoder adds what the adapter makes of an input to what the frozen matrix makes of it, so that no gradient by the
frozen weights is ever computed, and neither these nor anything of their size belong to the policy: policies that have
one base share it in memory, references included. PEFT, which does the same to a tree of torch modules, has nothing to
hold on to here, since the decoder is none; the tests hold gradients and results against it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexmarl.contracts.specification.team import Lora
from workers.models.adapter import check_adapter, parts_of
from workers.training.parameters import FlatParameters

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Factors:
    """Leaves of what is added to one matrix."""

    down: "torch.Tensor"
    up: "torch.Tensor"


class LowRank:
    """An adapter's weights in one buffer, laid over those of a decoder."""

    def __init__(
        self,
        base: FlatParameters,
        adapter: "Mapping[str, torch.Tensor]",
        lora: Lora,
        precision: str,
        device: str,
        frozen: bool = False,
    ) -> None:
        """Raises WrongAdapterError when the adapter does not fit."""
        check_adapter(adapter, {name: base.shape(name) for name in base.names}, lora)
        self._parts = {part.weight: part for part in parts_of(base.names, lora.targets)}
        self.scale = lora.scale
        order = [name for part in self._parts.values() for name in (part.down, part.up)]
        self.parameters = FlatParameters(adapter, order, precision, device, frozen)

    @property
    def adapted(self) -> Collection[str]:
        """Return the matrices to which something is added."""
        return self._parts.keys()

    def factors(self, weight: str) -> Factors | None:
        """Return what is added to a matrix, None where nothing is."""
        part = self._parts.get(weight)
        return None if part is None else Factors(self.parameters.leaf(part.down), self.parameters.leaf(part.up))
