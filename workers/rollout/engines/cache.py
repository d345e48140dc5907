"""Keys and values of a lane's rows: token-major, one tensor per layer, grown on demand.

A row's memory is touched only as far as the row is long, so on a CPU capacity costs address space, not memory. New
memory is zero, never uninitialised: a masked position still enters a product, where a stray NaN would spread.
"""

import copy
from typing import TYPE_CHECKING

from workers.models.architecture import Architecture
from workers.rollout.engines.layout import Ints, Segment

if TYPE_CHECKING:
    import torch

POSITIONS_STEP = 64
"""Capacity in positions grows in multiples of this."""


class Cache:
    """Rows [row, position, kv_heads * head_dim] of every layer."""

    def __init__(self, layers: int, architecture: Architecture, device: str, dtype: "torch.dtype") -> None:
        import torch

        self._architecture = architecture
        self._device = device
        self._dtype = dtype
        self._width = architecture.kv_heads * architecture.head_dim
        self.rows = 0
        self.positions = 0
        self.keys = [torch.empty(0, 0, self._width, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.empty(0, 0, self._width, dtype=dtype, device=device) for _ in range(layers)]
        self._flat: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._range = torch.empty(0, dtype=torch.int64)
        self._queries = torch.empty(0)

    def reserve(self, rows: int, positions: int, live: int) -> None:
        """Make room for `rows` rows of `positions` positions, keeping the first `live` rows."""
        import torch

        place = {"dtype": self._dtype, "device": self._device}
        if rows <= self.rows and positions <= self.positions:
            return
        kept = self.positions
        self.rows = max(rows, self.rows)
        self.positions = max(-(-positions // POSITIONS_STEP) * POSITIONS_STEP, self.positions)
        for tensors in (self.keys, self.values):
            for number, old in enumerate(tensors):
                tensors[number] = torch.zeros(self.rows, self.positions, self._width, **place)
                tensors[number][:live, :kept] = old[:live]
        self._flat = [
            (k.view(-1, self._width), v.view(-1, self._width)) for k, v in zip(self.keys, self.values, strict=True)
        ]
        self._range = torch.arange(max(self.rows, self.positions), device=self._device)
        a = self._architecture
        group = a.heads // a.kv_heads
        self._queries = torch.zeros(self.rows, a.kv_heads, group, a.kv_heads, a.head_dim, **place)

    def move(self, destinations: Ints, sources: Ints, length: int) -> None:
        """Copy rows, up to `length` positions."""
        import torch

        to, of = torch.from_numpy(destinations).to(self._device), torch.from_numpy(sources).to(self._device)
        for tensor in (*self.keys, *self.values):
            tensor[to, :length] = tensor[of, :length]

    def clear(self, rows: Ints) -> None:
        """Forget rows that hold no numbers: a masked position still enters a product."""
        import torch

        for tensor in (*self.keys, *self.values):
            tensor[torch.from_numpy(rows).to(self._device)] = 0.0

    def copy_in(self, rows: list[int], other: "Cache", sources: list[int], length: int) -> None:
        """Copy rows of another cache into some of this one's, up to `length` positions."""
        import torch

        to, of = torch.tensor(rows, device=self._device), torch.tensor(sources, device=self._device)
        for own, theirs in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            own[to, :length] = theirs[of, :length]

    def window(self, start: int, count: int) -> "Cache":
        """Return neighbouring rows as a cache of their own on the same memory."""
        part = copy.copy(self)
        part.keys = [tensor[start : start + count] for tensor in self.keys]
        part.values = [tensor[start : start + count] for tensor in self.values]
        part._flat = [
            (k.view(-1, self._width), v.view(-1, self._width)) for k, v in zip(part.keys, part.values, strict=True)
        ]
        return part

    def places(self, positions: "torch.Tensor") -> "torch.Tensor":
        """Return the flat index of each live row's current position."""
        return self._range[: len(positions)] * self.positions + positions

    def write(self, layer: int, places: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor") -> None:
        """Store one position of each live row."""
        keys, values = self._flat[layer]
        keys.index_copy_(0, places, k)
        values.index_copy_(0, places, v)

    def masks(self, parts: list[Segment], positions: "torch.Tensor") -> "list[torch.Tensor]":
        """Return additive masks [rows, 1, length] per segment: a row attends up to its own position."""
        return [
            (self._range[: part.length] > positions[part.start : part.stop, None]).to(self._dtype).mul_(-1e30)[:, None]
            for part in parts
        ]

    def attend(
        self, layer: int, q: "torch.Tensor", part: Segment, mask: "torch.Tensor", scale: float
    ) -> "torch.Tensor":
        """Attention of one new token per row [rows, heads * head_dim] over the row's past.

        All heads of a row share one product: each query is laid into the columns of its own key head, zeros elsewhere.
        For the few heads of small models that beats one tiny product per head.
        """
        import torch

        a = self._architecture
        rows, group = slice(part.start, part.stop), a.heads // a.kv_heads
        spread = self._queries[rows]
        spread.diagonal(dim1=1, dim2=3).copy_(q[rows].view(-1, a.kv_heads, group, a.head_dim).permute(0, 2, 3, 1))
        past = (rows, slice(part.length))
        queries, keys = spread.view(len(spread), a.heads, -1), self.keys[layer][past].transpose(1, 2)
        scores = torch.baddbmm(mask, queries, keys, alpha=scale)
        mixed = torch.bmm(torch.softmax(scores, -1), self.values[layer][past])
        own = mixed.view(len(spread), a.kv_heads, group, a.kv_heads, a.head_dim).diagonal(dim1=1, dim2=3)
        return own.permute(0, 3, 1, 2).reshape(len(spread), -1)
