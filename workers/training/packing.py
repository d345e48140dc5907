"""Blocks of equal shape to padded batches: little padding, few and bounded forward passes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from workers.training.blocks import Block, Floats, Ints

FORBIDDEN = -1e9
"""Added to the logit of a token that was not allowed: its probability is exactly 0, and so is its gradient."""

PADDING_WORTH = 256
"""Tokens of padding that cost about as much as a further forward and backward pass of a tiny model."""


@dataclass(frozen=True, slots=True)
class Batch:
    """U distinct inputs and B rows drawn from them, padded on the right to T input and R response tokens."""

    ids: Ints
    """[U, T]"""
    window: Ints
    """[U, R]: position whose logits predict response token r; padding repeats the last one."""
    temperature: Floats
    """[U]"""
    mask_of: Ints
    """[U]: row of `masks`."""
    masks: Floats
    """[sets, vocabulary], 0 or FORBIDDEN."""
    source: Ints
    """[B]: the input of each row."""
    targets: Ints
    """[B, R]"""
    present: Floats
    """[B, R]: 1 for a response token, 0 for padding."""
    behaviour: Floats
    """[B, R]"""
    lags: Floats
    """[B, R]"""
    advantages: Floats
    """[B, 1]"""
    coefficients: Floats
    """[B, 1]"""


def pack(blocks: Sequence[Block], vocabulary: int, token_budget: int) -> list[Batch]:
    """Arrange blocks, shortest inputs first, into batches of at most `token_budget` padded input tokens."""
    return [_batch(parts, vocabulary) for parts in _shared_out(blocks, token_budget)]


def _shared_out(blocks: Sequence[Block], budget: int) -> Iterator[list[Block]]:
    """Cut and join blocks; an input longer than the budget gets a batch of its own."""
    open_parts: list[Block] = []
    inputs = padding = 0
    for block in blocks:
        start = 0
        while start < len(block.inputs):
            waste = padding + inputs * (block.length - open_parts[-1].length) if open_parts else 0
            room = budget // block.length - inputs
            if open_parts and (room < 1 or waste > PADDING_WORTH):
                yield open_parts
                open_parts, inputs, padding = [], 0, 0
                continue
            stop = min(len(block.inputs), start + max(room, 1))
            open_parts.append(block.part(start, stop))
            inputs, padding, start = inputs + stop - start, waste, stop
    if open_parts:
        yield open_parts


def _batch(parts: Sequence[Block], vocabulary: int) -> Batch:
    length, width = parts[-1].length, max(part.width for part in parts)
    sets: dict[bytes, int] = {}
    steps = np.arange(width)
    firsts = np.cumsum([0] + [len(part.inputs) for part in parts])
    return Batch(
        ids=_stacked([part.inputs for part in parts], length),
        window=np.concatenate(
            [
                np.broadcast_to(np.minimum(part.prompt_length - 1 + steps, part.length - 1), (len(part.inputs), width))
                for part in parts
            ]
        ),
        temperature=np.concatenate([part.temperature for part in parts]),
        mask_of=np.array([sets.setdefault(allowed, len(sets)) for part in parts for allowed in part.allowed]),
        masks=np.stack([_mask(allowed, vocabulary) for allowed in sets]),
        source=np.concatenate([part.source + first for part, first in zip(parts, firsts, strict=False)]),
        targets=_stacked([part.targets for part in parts], width),
        present=_stacked([np.ones(part.targets.shape) for part in parts], width),
        behaviour=_stacked([part.behaviour for part in parts], width),
        lags=_stacked([part.lags for part in parts], width),
        advantages=np.concatenate([part.advantages for part in parts])[:, None],
        coefficients=np.concatenate([part.coefficients for part in parts])[:, None],
    )


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


def _mask(allowed: bytes, vocabulary: int) -> Floats:
    if not allowed:
        return np.zeros(vocabulary)
    mask = np.full(vocabulary, FORBIDDEN)
    mask[np.frombuffer(allowed, "<i4")] = 0.0
    return mask
