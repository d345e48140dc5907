"""The memory of what an engine makes of a version, in one piece: a large piece is touched in large pages, and one that
a version has left serves the next.

Invariants: tensors that were taken do not overlap; what does not fit has memory of its own, so a piece that was chosen
too small costs time and nothing else. Who begins anew with a piece sees to it that nobody reads what was taken before.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ALIGNMENT = 64
"""Elements: each tensor begins where a row of a processor's cache does."""


class OwnTensors:
    def __init__(self, elements: int, device: str, dtype: "torch.dtype") -> None:
        """`elements`: numbers that will be taken; none where each tensor is to have memory of its own."""
        import torch

        self.elements, self.dtype = elements, dtype
        self._piece = torch.empty(elements, dtype=dtype, device=device)
        self._end = 0

    def begin(self) -> None:
        """Give out everything anew."""
        self._end = 0

    def take(self, *shape: int) -> "torch.Tensor":
        """Return a tensor that holds anything."""
        start, size = self._end, math.prod(shape)
        end = start + -(-size // ALIGNMENT) * ALIGNMENT
        if end > self.elements:
            return self._piece.new_empty(shape)
        self._end = end
        return self._piece[start : start + size].view(shape)

    def copy(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return a tensor with equal numbers, each row behind the one before."""
        return self.take(*tensor.shape).copy_(tensor)
