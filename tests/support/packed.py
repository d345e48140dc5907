"""Logits of the trainer's decoder at the ends of given inputs."""

from collections.abc import Sequence

import numpy as np
import torch

from flexmarl.algorithms.aggregation import aggregation_of
from flexmarl.contracts.specification.losses import LOSS
from workers.training.blocks import blocks_of
from workers.training.decoder import Decoder
from workers.training.packing import pack
from workers.training.wire import TrainRow


def last_logits(decoder: Decoder, inputs: Sequence[Sequence[int]], last: int) -> list[torch.Tensor]:
    """Return the logits at the last positions of each input, all computed in one pack; lengths must differ."""
    rows = [_row(list(ids), last) for ids in inputs]
    (batch,) = pack(blocks_of(rows, aggregation_of(LOSS.options()), decoder.vocabulary), decoder.vocabulary, 2**30)
    found = decoder.logits(batch).split(last)
    order = sorted(range(len(inputs)), key=lambda number: len(inputs[number]))
    return [found[order.index(number)] for number in range(len(inputs))]


def _row(ids: list[int], last: int) -> TrainRow:
    cut = len(ids) - last + 1
    return TrainRow(
        prompt=np.array(ids[:cut], "<i4").tobytes(),
        response=np.array([*ids[cut:], 0], "<i4").tobytes(),
        logprobs=np.zeros(last, "<f4").tobytes(),
        allowed=b"",
        temperature=1.0,
        advantages=[1.0],
        weight=1.0,
    )
