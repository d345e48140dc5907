"""Packs hold each token once, are about equally long, and attention stays within its rows."""

import numpy as np
import pytest

from flexmarl.algorithms.aggregation import aggregation_of
from flexmarl.contracts.specification.losses import LOSS
from tests.unit.workers.test_train_gradients import WORDS, make_row
from workers.training.blocks import blocks_of
from workers.training.packing import CALL_WORTH, PackedTokens, pack
from workers.training.wire import TrainRow


def mixed_rows(count: int, longest: int = 700) -> list[TrainRow]:
    """Lognormal lengths: most are short, some ten times as long."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.0, 1.2, (count, 2)), 1, longest).astype(int)
    return [make_row(rng, int(prompt), int(reply)) for prompt, reply in lengths]


def packs(rows: list[TrainRow], budget: int) -> list[PackedTokens]:
    return pack(blocks_of(rows, aggregation_of(LOSS.options()), WORDS), WORDS, budget)


def inputs_of(rows: list[TrainRow]) -> list[bytes]:
    return sorted({row.prompt + row.response[:-4] for row in rows})


def cut(batch: PackedTokens) -> list[bytes]:
    """The inputs of a pack, told by where positions begin anew."""
    starts = np.flatnonzero(batch.positions == 0)
    return [part.astype("<i4").tobytes() for part in np.split(batch.ids, starts[1:])]


@pytest.mark.parametrize("budget", [300, 2048, 10**6])
def test_each_input_is_in_one_pack_without_padding(budget: int):
    rows = mixed_rows(200)
    found = packs(rows, budget)
    assert sorted(one for batch in found for one in cut(batch)) == inputs_of(rows)
    assert sum(len(batch.drawn) for batch in found) == sum(len(row.response) // 4 for row in rows)
    for batch in found:
        assert len(batch.ids) <= budget or len(cut(batch)) == 1
        assert len(batch.ids) == sum(stretch.tokens for stretch in batch.stretches)
        assert len(batch.at) == sum(stretch.predicted for stretch in batch.stretches)


def test_packs_are_about_equally_long():
    """A greedy filling would leave the last pack nearly empty."""
    rows = mixed_rows(120, longest=60)
    tokens = sum(map(len, inputs_of(rows))) // 4
    budget = tokens * 10 // 21  # greedy: two full ones and a tenth of one
    sizes = [len(batch.ids) for batch in packs(rows, budget)]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) <= 2 * 120


def test_attention_costs_what_rows_do_not_the_square_of_a_pack():
    (batch,) = packs(mixed_rows(200), 10**6)
    own = sum(len(one) ** 2 // 16 for one in cut(batch))
    laid = sum(stretch.inputs * stretch.longest**2 for stretch in batch.stretches)
    assert own <= laid <= 1.25 * own < 0.05 * len(batch.ids) ** 2
    for stretch in batch.stretches:
        assert stretch.inputs * stretch.longest - stretch.tokens <= CALL_WORTH


def test_rows_of_one_shape_are_attended_as_they_lie():
    rng = np.random.default_rng(1)
    (batch,) = packs([make_row(rng, 5, 4) for _ in range(32)], 10**6)
    (stretch,) = batch.stretches
    assert (stretch.laid, stretch.taken, stretch.asked, stretch.answered) == (None, None, None, None)
