"""Decoding whose bits do not depend on the batch: what an ordered run's engine computes with.

A reply's numbers vary with its neighbours for one reason: kernels choose how they sum by the shapes they are given. So
every product here has a shape that the row alone decides: rows are computed `BLOCK` at a time, whatever is live, and a
row attends the whole capacity of its own length class. What stands in the block's other places is computed and thrown
away. Two things are left to the machine, and `check` asks it before a version is served: a row's place within the block
and the words of its neighbours must not matter.

`BLOCK` is a multiple of every vector register's width, so that no element-wise kernel ends in a scalar rest.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from workers.models.architecture import UnsupportedModel
from workers.rollout.engines import decoder
from workers.rollout.engines.cache import Cache, SpareCaches
from workers.rollout.engines.decoder import Weights
from workers.rollout.engines.layout import Ints, Segment, capacity_of
from workers.rollout.engines.sampling import draw

if TYPE_CHECKING:
    import torch

BLOCK = 32
"""Rows computed at once: fewer cost more calls, more waste more of them when few requests run."""
PREFILL_BLOCK = 16
"""Prompts computed at once."""
PREFILL_GRAIN = 8
"""A prompt is padded to a multiple of this, which depends on its own length alone."""


def blocks(lengths: Ints) -> Iterator[Segment]:
    """Cut live rows, which lie in descending length classes, into ranges of one class and at most `BLOCK` rows."""
    capacities = capacity_of(lengths)
    start = 0
    for stop in [*(np.flatnonzero(np.diff(capacities)) + 1).tolist(), len(lengths)]:
        while start < stop:
            end = min(start + BLOCK, stop)
            yield Segment(start, end, int(capacities[start]))
            start = end


def decode(w: Weights, cache: Cache, ids: "torch.Tensor", positions: "torch.Tensor", host: Ints) -> "torch.Tensor":
    """Feed one token per live row and return the next token's logits [n, vocabulary]. `host` is `positions`.

    A block's other places may be live rows of shorter classes: what is written for them here their own, later block
    writes again before it reads it.
    """
    import torch
    import torch.nn.functional as F

    spare = (0, BLOCK)
    ids, positions = F.pad(ids, spare), F.pad(positions, spare)
    found = []
    for part in blocks(host + 1):
        rows = slice(part.start, part.start + BLOCK)
        window = cache.window(part.start, BLOCK)
        logits = decoder.decode(w, window, [Segment(0, BLOCK, part.length)], ids[rows], positions[rows])
        found.append(logits[: part.stop - part.start])
    return found[0] if len(found) == 1 else torch.cat(found)


def prefill(w: Weights, cache: Cache, first_row: int, prompts: list[tuple[int, ...]], copies: list[int]) -> None:
    """Fill rows `first_row..` with keys and values; row i gets `prompts[copies[i]]`, each computed in its own shape."""
    import torch

    device = cache.keys[0].device
    everywhere = torch.arange(PREFILL_BLOCK, device=device)
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(copies):
        rows_of.setdefault(number, []).append(first_row + row)
    for length, numbers in _by_padded_length(w, prompts).items():
        scratch = Cache(len(w.layers), w.architecture, str(device), w.dtype, SpareCaches())
        scratch.reserve(PREFILL_BLOCK, length, 0)
        for start in range(0, len(numbers), PREFILL_BLOCK):
            part = numbers[start : start + PREFILL_BLOCK]
            ids = np.zeros((PREFILL_BLOCK, length), np.int64)
            for place, number in enumerate(part):
                ids[place, : len(prompts[number])] = prompts[number]
            decoder.prefill(w, scratch, 0, torch.from_numpy(ids).to(device), everywhere)
            pairs = [(row, place) for place, number in enumerate(part) for row in rows_of[number]]
            cache.copy_in([row for row, _ in pairs], scratch, [place for _, place in pairs], length)


def _by_padded_length(w: Weights, prompts: list[tuple[int, ...]]) -> dict[int, list[int]]:
    """Return the numbers of the prompts that are not empty, by the length they are padded to."""
    found: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        if prompt:
            padded = -(-len(prompt) // PREFILL_GRAIN) * PREFILL_GRAIN
            found.setdefault(min(padded, w.architecture.max_positions), []).append(number)
    return found


def draw_in_blocks(
    logits: "torch.Tensor",
    uniform: "torch.Tensor",
    temperature: "torch.Tensor",
    greedy: "torch.Tensor",
) -> "tuple[torch.Tensor, torch.Tensor]":
    """As `sampling.draw`, `BLOCK` rows at a time."""
    import torch
    import torch.nn.functional as F

    n, rest = len(logits), -len(logits) % BLOCK
    logits = F.pad(logits, (0, 0, 0, rest))
    uniform, temperature = F.pad(uniform, (0, rest), value=0.5), F.pad(temperature, (0, rest), value=1.0)
    greedy = F.pad(greedy, (0, rest))
    parts = [slice(start, start + BLOCK) for start in range(0, n, BLOCK)]
    drawn = [draw(logits[part], uniform[part], temperature[part], greedy[part]) for part in parts]
    return torch.cat([tokens for tokens, _ in drawn])[:n], torch.cat([logprobs for _, logprobs in drawn])[:n]


def check(w: Weights, device: str) -> None:
    """Raise `UnsupportedModel` when a row's bits depend on its place in a block or on its neighbours' words."""
    import torch

    length = min(24, w.architecture.max_positions - 1)
    words = np.random.default_rng(0).integers(0, w.vocabulary, (BLOCK, length + 1))
    expected = _logits(w, words, device)
    for turn in (1, BLOCK // 2 + 1):
        places = np.roll(np.arange(BLOCK), turn)
        if not torch.equal(_logits(w, words[places], device), expected[torch.from_numpy(places).to(device)]):
            raise UnsupportedModel("ordered: this machine's kernels give a row other bits at another place of a batch")
    alone = words.copy()
    alone[1:] = words[::-1][1:]
    if not torch.equal(_logits(w, alone, device)[0], expected[0]):
        raise UnsupportedModel("ordered: this machine's kernels give a row other bits among other neighbours")


def _logits(w: Weights, words: Ints, device: str) -> "torch.Tensor":
    """Return what follows the words of one block, the last of them decoded and the others prefilled."""
    import torch

    cache, length = Cache(len(w.layers), w.architecture, device, w.dtype, SpareCaches()), words.shape[1] - 1
    cache.reserve(BLOCK, int(capacity_of(np.array([length + 1]))[0]), 0)
    prefill(w, cache, 0, [tuple(row[:-1].tolist()) for row in words], list(range(BLOCK)))
    positions = np.full(BLOCK, length, np.int64)
    ids = torch.from_numpy(np.ascontiguousarray(words[:, -1])).to(device)
    return decode(w, cache, ids, torch.from_numpy(positions).to(device), positions)
