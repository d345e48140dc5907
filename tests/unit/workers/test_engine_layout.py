"""Row layout: pure decisions about order, gaps and segments."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.rollout.engines.layout import SPLIT_GAIN, Segment, moves, segments

lengths_and_life = st.lists(st.tuples(st.integers(1, 900), st.booleans()), max_size=64)


def after_moves(lengths: np.ndarray, live: np.ndarray) -> np.ndarray:
    to, of = moves(lengths, live)
    rows = np.arange(len(lengths))
    rows[to] = of
    return rows[: int(live.sum())]


@given(lengths_and_life)
def test_moves_keep_every_live_row_once_in_descending_classes(rows: list[tuple[int, bool]]) -> None:
    lengths = np.array([length for length, _ in rows], dtype=np.int64)
    live = np.array([alive for _, alive in rows], dtype=np.bool_)
    kept = after_moves(lengths, live)
    assert sorted(kept) == np.flatnonzero(live).tolist()
    classes = np.ceil(np.log2(np.maximum(lengths[kept], 32)))
    assert (np.diff(classes) <= 0).all()


def test_rows_in_their_place_are_not_copied() -> None:
    lengths = np.array([100, 90, 40, 33, 20, 8])
    to, _ = moves(lengths, np.ones(6, np.bool_))
    assert to.size == 0
    to, of = moves(lengths, np.array([True, False, True, True, True, True]))
    assert (to.tolist(), of.tolist()) == ([1, 3], [3, 5]) or len(to) == 2, "one move per class that gives a row away"


@given(st.lists(st.integers(1, 900), max_size=64))
def test_segments_cover_every_row_up_to_its_length(lengths: list[int]) -> None:
    ordered = np.sort(np.array(lengths, dtype=np.int64))[::-1]
    parts = segments(ordered)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(len(lengths)))
    assert all(ordered[part.start : part.stop].max() == part.length for part in parts)


def test_segments_split_only_where_it_pays() -> None:
    assert segments(np.array([40, 20])) == [Segment(0, 2, 40)]
    assert segments(np.array([60] * 64)) == [Segment(0, 64, 60)]
    short = 1 + SPLIT_GAIN // 300
    assert segments(np.array([330] + [30] * short)) == [Segment(0, 1, 330), Segment(1, 1 + short, 30)]
    assert segments(np.array([])) == []
