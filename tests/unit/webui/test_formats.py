"""How figures are written for people."""

from datetime import UTC, datetime, timedelta

import pytest

from webui import formats

NOW = datetime(2026, 5, 12, 14, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1000, 0, "1\u2009000"),
        (-2.314, 2, "−2.31"),
        (-0.0004, 3, "0.000"),
        (None, 0, "–"),
        (float("nan"), 1, "–"),
        ("", 0, "–"),
    ],
)
def test_numbers(value: float | None, digits: int, text: str) -> None:
    assert formats.number(value, digits) == text


@pytest.mark.parametrize(("value", "text"), [(0.018, "+0.018"), (-0.018, "−0.018"), (0.0, "0.000"), (None, "–")])
def test_differences_carry_their_sign(value: float | None, text: str) -> None:
    assert formats.signed(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(9000, "9.0 k"), (999.6, "1.0 k"), (123_456, "123 k"), (0.4, "0.4"), (42, "42"), (2.5e6, "2.5 M")],
)
def test_magnitudes(value: float, text: str) -> None:
    assert formats.si(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.042, "42 ms"),
        (9.84, "9.8 s"),
        (61, "1 m 1 s"),
        (3600, "1 h"),
        (48_240, "13 h 24 m"),
        (97_200, "1 d 3 h"),
        (-3, "0 ms"),
    ],
)
def test_durations_have_two_units_at_most(value: float, text: str) -> None:
    assert formats.duration(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (64_800, 75_600, "18–21 h"),
        (3960, 4440, "66–74 min"),
        (200, 380, "3–6 min"),
        (10, 16, "10–16 s"),
        (30, 30, "30 s"),
        (None, 3, "–"),
    ],
)
def test_estimates_are_ranges(low: float | None, high: float | None, text: str) -> None:
    assert formats.span(low, high) == text


@pytest.mark.parametrize(
    ("back", "text"),
    [
        ({"seconds": 3}, "just now"),
        ({"minutes": 2}, "2 min ago"),
        ({"hours": 3}, "3 h ago"),
        ({"hours": 20}, "yesterday 18:05"),
        ({"days": 4}, "4 days ago"),
    ],
)
def test_past_moments_are_relative(back: dict[str, int], text: str) -> None:
    assert formats.ago(NOW - timedelta(**back), NOW) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.012"), (1.44e-5, "1.4e−5"), (0.0, "0.000"), (-2e-7, "−2.0e−7")]
)
def test_figures_far_below_one(value: float, text: str) -> None:
    assert formats.tiny(value) == text


def test_sizes_and_counts() -> None:
    assert formats.bytes_text(33_500_000_000) == "33.5 GB"
    assert formats.bytes_text(12) == "12 B"
    assert formats.plural(1, "step") == "1 step"
    assert formats.plural(2000, "entry", "entries") == "2\u2009000 entries"
