"""Texts that end a reply and are no part of what is read of it. Pure."""

from collections.abc import Sequence


def before(text: str, stops: Sequence[str]) -> str:
    """Return what stands before the first of some stop strings; the whole text where there is none."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))]


def certain(text: str, stops: Sequence[str]) -> str:
    """Return what of a text that goes on stands before any stop string, whatever comes next."""
    begun = (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
    return before(text, stops) if any(stop in text for stop in stops) else text[: len(text) - max(begun, default=0)]
