"""Keys and values of a lane's rows: token-major, one tensor per layer, grown on demand.

A row's memory is touched only as far as the row is long, so on a CPU capacity costs address space, not memory. New
memory is zero, never uninitialised: a masked position still enters a product, where a stray NaN would spread.
"""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.models.architecture import Architecture
from workers.rollout.engines.layout import Ints, Segment

if TYPE_CHECKING:
    import torch

POSITIONS_STEP = 64
"""Capacity in positions grows in multiples of this."""


@dataclass(frozen=True, slots=True)
class _Memory:
    """Keys and values of a cache that nobody reads any more."""

    keys: "list[torch.Tensor]"
    values: "list[torch.Tensor]"

    @property
    def size(self) -> int:
        return self.keys[0].numel()


class SpareCaches:
    """Memory that idle caches have left, for the next one of the same kind: an idle cache holds none itself.

    What is kept is what was once in use at the same time.
    """

    def __init__(self) -> None:
        self._left: dict[tuple[object, ...], list[_Memory]] = {}

    def give(self, kind: tuple[object, ...], memory: _Memory) -> None:
        """Keep memory, the largest last."""
        spares = self._left.setdefault(kind, [])
        spares.append(memory)
        spares.sort(key=lambda each: each.size)

    def take(self, kind: tuple[object, ...]) -> _Memory | None:
        """Return the largest memory that there is of a kind."""
        spares = self._left.get(kind)
        return spares.pop() if spares else None

    def tensors(self) -> "list[torch.Tensor]":
        return [tensor for spares in self._left.values() for each in spares for tensor in (*each.keys, *each.values)]

    def clear(self) -> None:
        """Give all of it back."""
        self._left.clear()


class Cache:
    """Rows [row, position, kv_heads * head_dim] of every layer; none until they are reserved."""

    def __init__(
        self, layers: int, architecture: Architecture, device: str, dtype: "torch.dtype", spares: SpareCaches
    ) -> None:
        import torch

        self._layers = layers
        self._architecture = architecture
        self._device = device
        self._dtype = dtype
        self._spares = spares
        self._width = architecture.kv_heads * architecture.head_dim
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._flat: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._range = torch.empty(0, dtype=torch.int64)
        self._queries = torch.empty(0)

    @property
    def rows(self) -> int:
        return self.keys[0].shape[0] if self.keys else 0

    @property
    def positions(self) -> int:
        return self.keys[0].shape[1] if self.keys else 0

    def reserve(self, rows: int, positions: int, live: int) -> None:
        """Make room for `rows` rows of `positions` positions, keeping the first `live` rows."""
        spare = self._spares.take(self._kind) if not self.keys else None
        if spare is not None:
            self.keys, self.values = spare.keys, spare.values
        if rows > self.rows or positions > self.positions:
            rows = max(rows, self.rows)
            positions = max(-(-positions // POSITIONS_STEP) * POSITIONS_STEP, self.positions)
            self.keys = self._grown(self.keys, rows, positions, live)
            self.values = self._grown(self.values, rows, positions, live)
        elif spare is None:
            return
        self._lay_out()

    def release(self) -> None:
        """Hold nothing any more: another cache takes the memory."""
        if self.keys:
            self._spares.give(self._kind, _Memory(self.keys, self.values))
            self.keys, self.values, self._flat = [], [], []

    @property
    def _kind(self) -> tuple[object, ...]:
        return (self._layers, self._width, self._dtype)

    def _grown(self, tensors: "list[torch.Tensor]", rows: int, positions: int, live: int) -> "list[torch.Tensor]":
        """Return larger tensors with the first rows of these, each of which goes as soon as it was copied."""
        import torch

        found = []
        for number in range(self._layers):
            grown = torch.zeros(rows, positions, self._width, dtype=self._dtype, device=self._device)
            if live:
                grown[:live, : tensors[number].shape[1]] = tensors[number][:live]
            if tensors:
                tensors[number] = grown
            found.append(grown)
        return found

    def _lay_out(self) -> None:
        import torch

        a = self._architecture
        group = a.heads // a.kv_heads
        self._flat = [
            (k.view(-1, self._width), v.view(-1, self._width)) for k, v in zip(self.keys, self.values, strict=True)
        ]
        self._range = torch.arange(max(self.rows, self.positions), device=self._device)
        self._queries = torch.zeros(
            self.rows, a.kv_heads, group, a.kv_heads, a.head_dim, dtype=self._dtype, device=self._device
        )

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
            (self._range[: part.length] > positions[part.start : part.stop, None]).float().mul_(-1e30)[:, None]
            for part in parts
        ]

    def attend(
        self, layer: int, q: "torch.Tensor", part: Segment, mask: "torch.Tensor", scale: float
    ) -> "torch.Tensor":
        """Attention of one new token per row [rows, heads * head_dim] over the row's past.

        All heads of a row share one product: each query is laid into the columns of its own key head, zeros elsewhere.
        For the few heads of small models that beats one tiny product per head. Scores are fp32 in every precision.
        """
        import torch

        a = self._architecture
        rows, group = slice(part.start, part.stop), a.heads // a.kv_heads
        spread = self._queries[rows]
        spread.diagonal(dim1=1, dim2=3).copy_(q[rows].view(-1, a.kv_heads, group, a.head_dim).permute(0, 2, 3, 1))
        past = (rows, slice(part.length))
        queries, keys = spread.view(len(spread), a.heads, -1), self.keys[layer][past].transpose(1, 2)
        scores = torch.baddbmm(mask, queries.float(), keys.float(), alpha=scale)
        mixed = torch.bmm(torch.softmax(scores, -1).to(self._dtype), self.values[layer][past])
        own = mixed.view(len(spread), a.kv_heads, group, a.kv_heads, a.head_dim).diagonal(dim1=1, dim2=3)
        return own.permute(0, 3, 1, 2).reshape(len(spread), -1)
