"""Blocks of equal shape to packs without padding: few and bounded forward passes, equally long.

Invariants: the tokens of a pack lie one behind the other, and each is computed once. Only attention looks at inputs as
rows: it takes a pack's neighbours of about one length, a stretch, in one call, and padding of a few tokens inside of a
stretch is all there is; no token ever sees another input's, so that attention costs what its inputs do, not the square
of the pack. Tables of the loss hold one figure per token and are padded, since a figure is nothing beside its token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.training.blocks import Floats, Ints, TokenBlock
from workers.training.held_replies import FREE, Bits

FORBIDDEN = -1e9
"""Added to the logit of a token that was not allowed: its probability is exactly 0, and so is its gradient."""

CALL_WORTH = 256
"""Tokens of padding in attention alone that cost about as much as a further call of it, forward and backward."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """b neighbouring inputs of a pack, T tokens long at most, that predict R tokens at most.

    Indices count from the stretch's own first token, place or prediction; None where no input differs from the others.
    """

    inputs: int
    tokens: int
    predicted: int
    window: Ints
    """[b, R]: position in the input whose logits predict response token r; padding repeats the last one."""
    laid: Ints | None
    """[b * T]: the token at each place; padding repeats an input's last one."""
    taken: Ints | None
    """[tokens]: the place of each token."""
    asked: Ints | None
    """[b * R]: the prediction at each place of the window."""
    answered: Ints | None
    """[predicted]: the place of each prediction in the window."""
    longest: int
    """T"""


@dataclass(frozen=True, slots=True)
class Masks:
    """What n predictions may be."""

    set_of: Ints
    """[n]: row of `sets`."""
    sets: Floats
    """[sets, vocabulary], 0 or FORBIDDEN: of allowed ids of whole rows."""
    bits_of: Ints
    """[n]: row of `bits`."""
    bits: Bits
    """[kinds, bytes], of the first id in the lowest bit: of replies held to a grammar; no rows where none is."""


@dataclass(frozen=True, slots=True)
class PackSight:
    """What the tokens of a pack see of their input: clean ones of earlier blocks, and those of own block and copy."""

    blocks: Ints
    """[N]"""
    copies: Ints
    """[N]: 0 is clean."""


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """N tokens of distinct inputs, which predict n tokens; and B rows that drew m tokens from these predictions."""

    ids: Ints
    """[N]"""
    positions: Ints
    """[N]: of each token in its input."""
    stretches: tuple[Stretch, ...]
    at: Ints
    """[n]: tokens that predict."""
    temperature: Floats
    """[n]"""
    masks: Masks
    drawn_at: Ints
    """[m], ascending: the prediction that a token was drawn from."""
    drawn: Ints
    """[m]"""
    openings: Ints
    """[t], ascending: the first sampled token of each turn of each row, as a place in the flattened [B, R]."""
    table: Ints
    """[B, R]: which of the m drawn tokens is each row's r-th; padding repeats the first."""
    present: Floats
    """[B, R]: 1 for a response token, 0 for padding."""
    behaviour: Floats
    """[B, R]"""
    lags: Floats
    """[B, R]"""
    advantages: Floats
    """[B, R]: of the turn of each token"""
    coefficients: Floats
    """[B, 1]"""
    sight: PackSight | None = None
    """What its tokens see; None: those before them in their input."""


def pack(blocks: Sequence[TokenBlock], vocabulary: int, token_budget: int) -> list[PackedTokens]:
    """Arrange blocks, shortest inputs first, into packs of at most `token_budget` tokens."""
    return [_batch(parts, vocabulary) for parts in _shared_out(blocks, token_budget)]


def _shared_out(blocks: Sequence[TokenBlock], budget: int) -> Iterator[list[TokenBlock]]:
    """Cut and join blocks to packs of nearly one size; an input longer than the budget gets a pack of its own."""
    left = sum(block.inputs.size for block in blocks)
    share = _share(left, budget)
    parts: list[TokenBlock] = []
    tokens = 0
    for block in blocks:
        start, count = 0, len(block.inputs)
        while start < count:
            room = (share - tokens) // block.length
            if parts and (room < 1 or tokens + block.length > budget):
                yield parts
                left -= tokens
                share, parts, tokens = _share(left, budget), [], 0
                continue
            stop = min(count, start + max(room, 1))
            parts.append(block.part(start, stop))
            tokens += (stop - start) * block.length
            start = stop
    if parts:
        yield parts


def _share(tokens: int, budget: int) -> int:
    """Return how long each pack is when the tokens that are left are shared out evenly."""
    packs = max(1, -(-tokens // budget))
    return -(-tokens // packs)


def _batch(parts: Sequence[TokenBlock], vocabulary: int) -> PackedTokens:
    width = max(part.width for part in parts)
    first_token = np.cumsum([0] + [part.inputs.size for part in parts])
    first_asked = np.cumsum([0] + [part.predictions for part in parts])
    drawn_at, drawn, table = _drawn(parts, first_asked, width)
    return PackedTokens(
        ids=np.concatenate([part.inputs.ravel() for part in parts]),
        positions=np.concatenate([np.tile(_positions(part), len(part.inputs)) for part in parts]),
        stretches=tuple(_stretch(joined) for joined in _stretches(parts)),
        at=np.concatenate([first + _predicting(part).ravel() for part, first in zip(parts, first_token, strict=False)]),
        temperature=np.concatenate([part.temperature.repeat(part.width) for part in parts]),
        masks=_masks(parts, vocabulary),
        drawn_at=drawn_at,
        drawn=drawn,
        openings=_openings(parts, width),
        table=table,
        present=_stacked([np.ones(part.targets.shape) for part in parts], width),
        behaviour=_stacked([part.behaviour for part in parts], width),
        lags=_stacked([part.lags for part in parts], width),
        advantages=_stacked([part.advantages for part in parts], width),
        coefficients=np.concatenate([part.coefficients for part in parts])[:, None],
        sight=_sight(parts),
    )


def _positions(part: TokenBlock) -> Ints:
    return np.arange(part.length) if part.sight is None else part.sight.positions


def _sight(parts: Sequence[TokenBlock]) -> PackSight | None:
    seen = [(part.sight, len(part.inputs)) for part in parts if part.sight is not None]
    if not seen:
        return None
    return PackSight(
        np.concatenate([np.tile(sight.blocks, inputs) for sight, inputs in seen]),
        np.concatenate([np.tile(sight.copies, inputs) for sight, inputs in seen]),
    )


def _predicting(part: TokenBlock) -> Ints:
    """Return the tokens [u, R] of a part that predict, counted from its first one."""
    return np.arange(len(part.inputs))[:, None] * part.length + part.predicting


def _openings(parts: Sequence[TokenBlock], width: int) -> Ints:
    firsts = np.cumsum([0] + [len(part.targets) for part in parts])
    found = []
    for part, first in zip(parts, firsts, strict=False):
        sampled = np.array(part.spans[1::2])
        turns = (np.cumsum(sampled) - sampled)[sampled > 0]
        found.append(((first + np.arange(len(part.targets)))[:, None] * width + turns).ravel())
    return np.concatenate(found)


def _drawn(parts: Sequence[TokenBlock], first_asked: Ints, width: int) -> tuple[Ints, Ints, Ints]:
    """Return the drawn tokens in the order of what predicted them, and where in that order each row's tokens are."""
    at = np.concatenate(
        [
            (first + part.source[:, None] * part.width + np.arange(part.width)).ravel()
            for part, first in zip(parts, first_asked, strict=False)
        ]
    )
    drawn = np.concatenate([part.targets.ravel() for part in parts])
    order = np.argsort(at, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    cuts = np.cumsum([0] + [part.targets.size for part in parts])
    ranks = [rank[a:b].reshape(part.targets.shape) for part, (a, b) in zip(parts, pairwise(cuts), strict=True)]
    return at[order], drawn[order], _stacked(ranks, width)


def _stretches(parts: Sequence[TokenBlock]) -> Iterator[list[TokenBlock]]:
    """Join neighbours of about one length, shortest first."""
    joined: list[TokenBlock] = []
    inputs = padding = 0
    for part in parts:
        waste = padding + inputs * (part.length - joined[-1].length) if joined else 0
        if waste > CALL_WORTH:
            yield joined
            joined, inputs, waste = [], 0, 0
        joined.append(part)
        inputs, padding = inputs + len(part.inputs), waste
    yield joined


def _stretch(parts: Sequence[TokenBlock]) -> Stretch:
    counts = [len(part.inputs) for part in parts]
    lengths = np.repeat([part.length for part in parts], counts)
    widths = np.repeat([part.width for part in parts], counts)
    laid, taken = _laid_out(lengths)
    asked, answered = _laid_out(widths)
    longest = int(widths.max())
    windows = [np.pad(part.predicting, (0, longest - part.width), "edge") for part in parts]
    return Stretch(
        inputs=len(lengths),
        tokens=int(lengths.sum()),
        predicted=int(widths.sum()),
        window=np.repeat(windows, counts, axis=0),
        laid=laid,
        taken=taken,
        asked=asked,
        answered=answered,
        longest=int(lengths.max()),
    )


def _laid_out(lengths: Ints) -> tuple[Ints | None, Ints | None]:
    """Return where items of ragged rows lie in a padded table, and the way back; None where nothing is ragged."""
    longest = lengths.max()
    if lengths.min() == longest:
        return None, None
    steps = np.arange(longest)
    firsts = np.cumsum(lengths) - lengths
    laid = firsts[:, None] + np.minimum(steps, lengths[:, None] - 1)
    return laid.ravel(), np.flatnonzero(steps < lengths[:, None])


def _stacked(tables: Sequence[npt.NDArray[Any]], width: int) -> npt.NDArray[Any]:
    """Put tables under each other, padded with zeros on the right."""
    if all(table.shape[1] == width for table in tables):
        return np.concatenate(tables)
    stacked = np.zeros((sum(len(table) for table in tables), width), tables[0].dtype)
    row = 0
    for table in tables:
        stacked[row : row + len(table), : table.shape[1]] = table
        row += len(table)
    return stacked


def _masks(parts: Sequence[TokenBlock], vocabulary: int) -> Masks:
    sets: dict[bytes, int] = {}
    set_of = [np.array([sets.setdefault(allowed, len(sets)) for allowed in part.allowed]) for part in parts]
    kinds = [np.full(part.predictions, FREE) if part.held is None else part.held.kinds.ravel() for part in parts]
    table = next((part.held.table for part in parts if part.held is not None), None)
    used, bits_of = np.unique(np.concatenate([[FREE], *kinds]), return_inverse=True)  # FREE comes first: the least
    return Masks(
        set_of=np.concatenate([own.repeat(part.width) for own, part in zip(set_of, parts, strict=True)]),
        sets=np.stack([_mask(allowed, vocabulary) for allowed in sets]),
        bits_of=bits_of[1:],
        bits=np.zeros((0, 0), np.uint8) if table is None else table.packed(used),
    )


def _mask(allowed: bytes, vocabulary: int) -> Floats:
    if not allowed:
        return np.zeros(vocabulary)
    mask = np.full(vocabulary, FORBIDDEN)
    mask[np.frombuffer(allowed, "<i4")] = 0.0
    return mask
