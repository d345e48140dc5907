"""Who holds what of a policy's flat buffers: the leaves of the decoder cut along their rows, as FSDP2 cuts them.

Invariant: a buffer that was split is joined to the same buffer, for any number of ranks. So what lies on disk is whole,
and whoever restores it may be fewer or more than those who made it. Pure: shapes and views, no communication.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class StackedWeights:
    """Neighbouring weights stacked along their rows: one parameter of a module."""

    names: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def row(self) -> int:
        return prod(self.shape[1:])

    @property
    def size(self) -> int:
        return prod(self.shape)

    def share(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return where a rank's part begins and ends within the leaf, in elements. The last ranks may have nothing."""
        most = -(-self.shape[0] // ranks)
        first = min(rank * most, self.shape[0])
        return first * self.row, min(first + most, self.shape[0]) * self.row


@dataclass(frozen=True, slots=True)
class ShardedLayout:
    """Leaves in the order of the whole buffer, and the number of ranks that share them."""

    leaves: tuple[StackedWeights, ...]
    ranks: int

    @property
    def size(self) -> int:
        """Elements of the whole buffer."""
        return sum(leaf.size for leaf in self.leaves)

    def length(self, rank: int) -> int:
        """Elements that a rank holds."""
        return sum(end - start for start, end in self._shares(rank))

    @property
    def longest(self) -> int:
        """Elements of the longest part; all travel padded to it. The first rank has it."""
        return self.length(0)

    def split(self, whole: "torch.Tensor") -> "list[torch.Tensor]":
        """Return every rank's part of a whole buffer, padded to the longest."""
        parts = [whole.new_zeros(self.longest) for _ in range(self.ranks)]
        for rank, part in enumerate(parts):
            at = base = 0
            for leaf, (start, end) in zip(self.leaves, self._shares(rank), strict=True):
                part[at : at + end - start] = whole[base + start : base + end]
                at, base = at + end - start, base + leaf.size
        return parts

    def join(self, parts: "Sequence[torch.Tensor]") -> "torch.Tensor":
        """Return the whole buffer of every rank's padded part."""
        whole = parts[0].new_empty(self.size)
        for rank, part in enumerate(parts):
            at = base = 0
            for leaf, (start, end) in zip(self.leaves, self._shares(rank), strict=True):
                whole[base + start : base + end] = part[at : at + end - start]
                at, base = at + end - start, base + leaf.size
        return whole

    def _shares(self, rank: int) -> list[tuple[int, int]]:
        return [leaf.share(rank, self.ranks) for leaf in self.leaves]


def names_split(whole: "torch.Tensor", shapes: Shapes) -> "dict[str, torch.Tensor]":
    """Return the weights of a whole buffer by name, as views."""
    found, at = {}, 0
    for name, shape in shapes.items():
        found[name] = whole[at : at + prod(shape)].view(*shape)
        at += prod(shape)
    return found
