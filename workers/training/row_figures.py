"""Figures of single rows from one forward pass without gradient, in the order of the rows."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from flexmarl.algorithms.aggregation import Aggregation
from workers.training.blocks import blocks_of
from workers.training.packing import PackedTokens, pack
from workers.training.wire import TrainRow

if TYPE_CHECKING:
    import torch


def each_row(
    rows: Sequence[TrainRow],
    aggregate: Aggregation,
    vocabulary: int,
    budget: int,
    compute: "Callable[[PackedTokens], torch.Tensor]",
    width: int,
) -> "torch.Tensor":
    """Return [rows, width] of `compute`, which gives them for the rows of a batch; in fp64, on the CPU.

    Rows without response have none: theirs are 0.
    """
    import torch

    # Packing takes rows out of their order and keeps what stands beside them, so each carries its number along.
    numbered = [structs.replace(row, advantage=float(number)) for number, row in enumerate(rows)]
    found = torch.zeros(len(rows), width, dtype=torch.float64)
    for batch in pack(blocks_of(numbered, aggregate, vocabulary), vocabulary, budget):
        with torch.no_grad():
            found[torch.from_numpy(batch.advantages[:, 0]).long()] = compute(batch).double().cpu()
    return found
