"""Figures of single turns from one forward pass without gradient, in the order of rows and their turns."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from msgspec import structs

from workers.training.blocks import blocks_of
from workers.training.held_replies import HeldReplies
from workers.training.packing import PackedTokens, pack
from workers.training.wire import TrainRow

if TYPE_CHECKING:
    import torch


def each_turn(
    rows: Sequence[TrainRow],
    vocabulary: int,
    budget: int,
    compute: "Callable[[PackedTokens], torch.Tensor]",
    width: int,
    replies: HeldReplies | None = None,
) -> "torch.Tensor":
    """Return [turns, width] of `compute`, which gives them for the turns of a batch; in fp64, on the CPU.

    Turns in which nothing was sampled have none: theirs are 0. Without `replies`, which makes the masks of those that
    were held to a grammar, `compute` must look at no distribution.
    """
    import torch

    # Packing takes rows out of their order and keeps what stands beside tokens, so each turn carries its number along.
    numbers = count()
    numbered = [
        structs.replace(
            row,
            advantages=[float(next(numbers)) for _ in row.advantages],
            grammars=[] if replies is None else row.grammars,
        )
        for row in rows
    ]
    found = torch.zeros(next(numbers), width, dtype=torch.float64)
    blocks = blocks_of(numbered, lambda tokens: (1.0, 1.0), vocabulary, replies=replies)
    for batch in pack(blocks, vocabulary, budget):
        with torch.no_grad():
            found[torch.from_numpy(batch.advantages.ravel()[batch.openings]).long()] = compute(batch).double().cpu()
    return found


def turn_sums(batch: PackedTokens, per_token: "torch.Tensor") -> "torch.Tensor":
    """Add up the tokens [rows, tokens] of each turn of a batch; returns [turns, 1] in fp64."""
    import torch

    flat = per_token.masked_fill(torch.from_numpy(batch.present == 0).to(per_token.device), 0.0).double().ravel()
    begins = torch.zeros(len(flat), dtype=torch.long)
    begins[torch.from_numpy(batch.openings)] = 1
    turn = begins.cumsum(0).sub_(1).to(flat.device)
    return flat.new_zeros(len(batch.openings)).index_add_(0, turn, flat).unsqueeze(1)
