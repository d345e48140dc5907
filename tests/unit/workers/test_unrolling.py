"""How rows of block-diffusion policies are laid out for the trainer, and what is kept of their steps."""

import itertools

import numpy as np
import orjson
import pytest

from flexmarl.contracts.specification.team import MOST_BLOCK, PolicySpec
from flexmarl.store.data.spans import Span, decoded, encoded, step_digits, steps_of
from tests.unit.workers.test_block_diffusion import AT_ONCE, BLOCK, DIPO, ids, packed, random_row
from workers.models.architecture import PAD
from workers.training.errors import TrainerRefusal
from workers.training.unrolling import Unrolling


def test_each_token_is_predicted_in_one_copy_and_masked_there() -> None:
    rng = np.random.default_rng(0)
    for tokens, prompt, unrolling in itertools.product((1, 3, 4, 9, 13), (1, 4, 6), (DIPO, AT_ONCE)):
        row = random_row(rng, tokens, prompt=prompt)
        sight = unrolling.sight(row)
        given = ids(unrolling.input_of(row, sight, 0))
        assert len(set(sight.predicting.tolist())) == tokens
        assert sight.source[sight.predicting].tolist() == list(range(prompt, prompt + tokens)), "each, in its place"
        assert all(given[place] == PAD and sight.masked[place] for place in sight.predicting)
        if unrolling is DIPO:
            assert (given.count(PAD), sight.masked[sight.copies == 0].any()) == (int(sight.masked.sum()), False)
            copies = sight.copies[sight.predicting]
            for start in range(0, tokens, BLOCK):
                steps = np.frombuffer(row.steps, "<i2")[start : start + BLOCK]
                order = np.unique(steps, return_inverse=True)[1]
                assert copies[start : start + BLOCK].tolist() == (order + 1).tolist(), "in the order of the steps"


def test_a_reply_of_one_step_is_masked_whole() -> None:
    row = random_row(np.random.default_rng(1), 10, steps=1)
    sight = DIPO.sight(row)
    noisy = sight.copies > 0
    assert sight.masked[noisy].all()
    assert set(sight.copies) == {0, 1}
    assert int(noisy.sum()) == 10


@pytest.mark.parametrize(
    ("change", "said_why"),
    [
        ({"steps": b""}, "step map"),
        ({"steps": np.array([0, 1, -1, 0], "<i2").tobytes()}, "step map"),
        ({"advantages": [1.0, 1.0], "spans": [3, 2, 2, 2]}, "several turns"),
        ({"response": np.array([3, PAD, 4, 5], "<i4").tobytes(), "allowed": b""}, "not allowed"),
    ],
)
def test_a_row_that_cannot_be_laid_out_is_refused(change: dict[str, object], said_why: str) -> None:
    row = random_row(np.random.default_rng(7), BLOCK)
    for name, value in change.items():
        setattr(row, name, value)
    with pytest.raises(TrainerRefusal, match=said_why):
        packed([row])


def test_a_span_keeps_its_step_map() -> None:
    steps = [0, 3, 31, 1]
    spans = [Span(5, 4, "length", steps=step_digits(steps)), Span(2, 1, "length", steps="0")]
    kept = encoded(spans[:1])
    assert kept is not None
    back = decoded(orjson.loads(kept), spans[0])
    assert (back, np.frombuffer(steps_of(back), "<i2").tolist()) == (spans[:1], steps)
    assert encoded([Span(5, 4, "length")]) is None
    assert len(step_digits(range(MOST_BLOCK))) == MOST_BLOCK
    assert np.frombuffer(steps_of(spans), "<i2").tolist() == [*steps, 0]
    assert steps_of([Span(5, 4, "length")]) == b""


def test_a_policy_says_how_its_rows_are_laid_out() -> None:
    assert Unrolling.of(PolicySpec(), 1) is None
    told = PolicySpec.model_validate({"model": {"decoding": "block_diffusion", "block": 8}, "log_probs": "diffu_grpo"})
    found = Unrolling.of(told, 1)
    assert found is not None
    assert (found.block, found.all_at_once) == (8, True)
    assert found != Unrolling.of(told, 2)
