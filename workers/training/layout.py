"""Where the tokens of a pack lie, on the device: one behind the other for all that is computed token by token, as rows
of about one length, a stretch each, for attention.

Matrix products in bf16 on a CPU are done by oneDNN, which compiles a kernel for every shape that it meets and
keeps a thousand of them: with packs of any length a process grows by hundreds of megabytes. So there the tokens of a
pack, and those that predict, are filled up to a multiple of `ROUND` by a document of its own that nothing is asked of,
and so are the rows of attention by copies of their last token.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from workers.training.blocks import Ints
from workers.training.packing import PackedTokens, PackSight, Stretch
from workers.training.scores import ScoreRequest

if TYPE_CHECKING:
    import torch

ROUND = 64
"""Tokens: at most 32 lengths of packs on a CPU, for one token in thirty."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How items of a stretch are laid out as rows, and gathered from them again."""

    rows: int
    items: int
    laid: "torch.Tensor | None"
    taken: "torch.Tensor | None"

    def lay(self, items: "torch.Tensor") -> "torch.Tensor":
        """Return [items, ...] as [rows, length, ...]."""
        laid = items if self.laid is None else items.index_select(0, self.laid)
        return laid.view(self.rows, len(laid) // self.rows, *laid.shape[1:])

    def gather(self, table: "torch.Tensor") -> "torch.Tensor":
        """Return what `lay` was given."""
        flat = table.flatten(0, 1)
        return flat if self.taken is None else flat.index_select(0, self.taken)


@dataclass(frozen=True, slots=True)
class Layout:
    ids: "torch.Tensor"
    """[N]"""
    positions: "torch.Tensor"
    """[N]"""
    longest: int
    at: "torch.Tensor"
    """[n]"""
    tokens: tuple[RowLayout, ...]
    """Of each stretch."""
    predictions: tuple[RowLayout, ...]
    seen: "tuple[torch.Tensor | None, ...]"
    """Of each stretch: [b, 1, T, T], which token each sees; None: those before it."""
    visible: "tuple[torch.Tensor, ...]"
    """Of each stretch: [b, 1, R, T], which token each prediction sees."""
    asked: ScoreRequest

    @classmethod
    def of(cls, batch: PackedTokens, like: "torch.Tensor") -> "Layout":
        """Bring a pack to the device of a tensor, and its figures to the precision of its scores."""
        import torch

        if like.dtype == torch.bfloat16 and like.device.type == "cpu":
            batch = filled_up(batch)
        exact = torch.float64 if like.dtype == torch.float64 else torch.float32
        place = _Placer(like.device)
        masks, heated = batch.masks, bool((batch.temperature != 1.0).any())
        masked, held = bool(masks.sets.any()), len(masks.bits) > 0
        asked = ScoreRequest(
            place(batch.drawn_at),
            place(batch.drawn),
            place(batch.temperature).to(exact).unsqueeze(1) if heated else None,
            place(masks.sets).to(exact) if masked else None,
            place(masks.set_of) if masked else None,
            place(masks.bits) if held else None,
            place(masks.bits_of) if held else None,
        )
        tokens = tuple(place.spread(one.inputs, one.tokens, one.laid, one.taken) for one in batch.stretches)
        seen = place.seen(batch.sight, tokens)
        return cls(
            ids=place(batch.ids),
            positions=place(batch.positions),
            longest=int(batch.positions.max()) + 1,
            at=place(batch.at),
            tokens=tokens,
            predictions=tuple(
                place.spread(one.inputs, one.predicted, one.asked, one.answered) for one in batch.stretches
            ),
            seen=seen,
            visible=tuple(place.visible(*each) for each in zip(batch.stretches, seen, strict=True)),
            asked=asked,
        )


def filled_up(batch: PackedTokens) -> PackedTokens:
    """Return a pack with multiples of `ROUND` tokens and predictions, both of the pack as it is coming first."""
    tokens, predictions = len(batch.ids), len(batch.at)
    asked = -predictions % ROUND
    more = -tokens % ROUND or (ROUND if asked else 0)
    stretches = tuple(map(_widened, batch.stretches))
    if not more:
        return replace(batch, stretches=stretches)
    filler = _widened(Stretch(1, more, asked, np.zeros((1, asked), np.int64), None, None, None, None, more))
    return replace(
        batch,
        ids=_longer(batch.ids, more),
        positions=np.concatenate([batch.positions, np.arange(more)]),
        stretches=(*stretches, filler),
        at=np.concatenate([batch.at, np.full(asked, tokens)]),
        temperature=np.concatenate([batch.temperature, np.ones(asked)]),
        sight=None if batch.sight is None else _wider(batch.sight, more),
        masks=replace(
            batch.masks, set_of=_longer(batch.masks.set_of, asked), bits_of=_longer(batch.masks.bits_of, asked)
        ),
    )


def _wider(sight: PackSight, more: int) -> PackSight:
    return PackSight(_longer(sight.blocks, more), _longer(sight.copies, more))


def _widened(stretch: Stretch) -> Stretch:
    """Return a stretch whose inputs, and whose predictions, are a multiple of `ROUND` long in attention."""
    rows = stretch.inputs
    laid, taken = _padded(rows, stretch.tokens, stretch.laid, stretch.taken)
    asked, answered = _padded(rows, stretch.predicted, stretch.asked, stretch.answered)
    width = stretch.window.shape[1]
    return replace(
        stretch,
        window=np.pad(stretch.window, ((0, 0), (0, -width % ROUND)), "edge") if width else stretch.window,
        laid=laid,
        taken=taken,
        asked=asked,
        answered=answered,
        longest=stretch.longest + -stretch.longest % ROUND,
    )


def _padded(rows: int, items: int, laid: Ints | None, taken: Ints | None) -> tuple[Ints | None, Ints | None]:
    length = (items if laid is None else len(laid)) // rows
    more = -length % ROUND
    if not more:
        return laid, taken
    places = np.arange(items) if taken is None else taken
    table = (np.arange(items) if laid is None else laid).reshape(rows, length)
    return np.pad(table, ((0, 0), (0, more)), "edge").ravel(), places + places // length * more


def _longer(items: Ints, more: int) -> Ints:
    return np.concatenate([items, np.zeros(more, items.dtype)])


class _Placer:
    def __init__(self, device: "torch.device") -> None:
        self._device = device

    def __call__(self, table: "np.ndarray") -> "torch.Tensor":
        import torch

        return torch.from_numpy(table).to(self._device)

    def spread(self, rows: int, items: int, laid: "np.ndarray | None", taken: "np.ndarray | None") -> RowLayout:
        return RowLayout(rows, items, None if laid is None else self(laid), None if taken is None else self(taken))

    def visible(self, stretch: Stretch, seen: "torch.Tensor | None") -> "torch.Tensor":
        """Return [b, 1, R, T]: what the predictions of a stretch see, of what each of its tokens does."""
        import torch

        window = self(stretch.window).unsqueeze(-1)
        if seen is not None:
            return seen.gather(2, window.unsqueeze(1).expand(-1, -1, -1, seen.shape[-1]))
        return (torch.arange(stretch.longest, device=self._device) <= window).unsqueeze(1)

    def seen(self, sight: PackSight | None, tokens: tuple[RowLayout, ...]) -> "tuple[torch.Tensor | None, ...]":
        """Return [b, 1, T, T] of each stretch: what its tokens see, where that is not what stands before them."""
        import torch

        if sight is None:
            return (None,) * len(tokens)
        sizes = [spread.items for spread in tokens]
        parts = (torch.split(self(each), sizes) for each in (sight.blocks, sight.copies))
        return tuple(_seen(*each) for each in zip(tokens, *parts, strict=True))


def _seen(spread: RowLayout, blocks: "torch.Tensor", copies: "torch.Tensor") -> "torch.Tensor":
    import torch

    block, copy = spread.lay(blocks), spread.lay(copies)
    real = torch.ones(block.numel(), dtype=torch.bool, device=block.device)
    if spread.taken is not None:  # what pads a row stands for no token
        real = torch.zeros_like(real).index_fill_(0, spread.taken, True)
    earlier = (copy == 0).unsqueeze(1) & (block.unsqueeze(1) < block.unsqueeze(2))
    own = (copy.unsqueeze(1) == copy.unsqueeze(2)) & (block.unsqueeze(1) == block.unsqueeze(2))
    return ((earlier | own) & real.view(block.shape).unsqueeze(1)).unsqueeze(1)
