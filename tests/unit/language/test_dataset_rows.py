"""Rows of datasets: their lines, their digest, and the order in which they are tasks."""

from hypothesis import given
from hypothesis import strategies as st

from flexmarl.contracts.row_order import epoch_of, row_of
from flexmarl.language.dataset_rows import DatasetRow, digest_of, from_line, to_line
from flexmarl.language.messages import Message


def test_a_row_is_the_same_out_of_its_line() -> None:
    row = DatasetRow((Message("system", "Be brief."), Message("user", "1+1?")), "2", {"b": [1.5, None], "a": "ä"})
    assert from_line(to_line(row)) == row
    assert row.prompt == "1+1?"


def test_the_digest_tells_rows_sides_and_order_apart() -> None:
    rows = [(False, b"1"), (True, b"2")]
    others = [
        [(True, b"1"), (True, b"2")],
        [(True, b"2"), (False, b"1")],
        [(False, b"1")],
        [(False, b"12"), (True, b"")],
    ]
    assert digest_of(rows) == digest_of(iter(rows))
    assert digest_of(rows) not in [digest_of(other) for other in others]


@given(st.integers(1, 300), st.integers(0, 5), st.integers(0, 3))
def test_each_epoch_plays_each_row_once(rows: int, epoch: int, seed: int) -> None:
    draws = range(epoch * rows, (epoch + 1) * rows)
    assert sorted(row_of(draw, rows, seed) for draw in draws) == list(range(rows))
    assert {epoch_of(draw, rows) for draw in draws} == {epoch}


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(row_of(epoch * 50 + n, 50, seed) for n in range(50)) for epoch in range(3) for seed in range(3)]
    assert len(set(orders)) == 9
    assert tuple(range(50)) not in orders


def test_the_order_is_the_same_for_ever() -> None:
    assert [row_of(draw, 10, 0) for draw in range(20)] == [9, 8, 0, 1, 7, 5, 6, 4, 2, 3, 9, 3, 6, 8, 0, 7, 2, 5, 1, 4]
