"""Arithmetic of time spans. Pure.

Invariant: a list of spans that a function returns is ordered, disjoint and without empty spans; `cut` never makes or
loses a second: the two lists it returns add up to the first argument.
"""

from collections.abc import Iterable

Spans = list[tuple[float, float]]


def merged(spans: Iterable[tuple[float, float]]) -> Spans:
    """Join overlapping and touching spans."""
    out: Spans = []
    for low, high in sorted(s for s in spans if s[1] > s[0]):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def cut(spans: Spans, by: Spans) -> tuple[Spans, Spans]:
    """Split disjoint spans into (what lies inside `by`, what is left)."""
    inside: Spans = []
    rest: Spans = []
    start = 0
    for low, high in spans:
        while start < len(by) and by[start][1] <= low:
            start += 1
        at = low
        for other_low, other_high in by[start:]:
            if other_low >= high:
                break
            if other_low > at:
                rest.append((at, other_low))
            begin, end = max(other_low, at), min(other_high, high)
            inside.append((begin, end))
            at = end
        if at < high:
            rest.append((at, high))
    return inside, rest


def length(spans: Spans) -> float:
    """Return the seconds of disjoint spans."""
    return sum(high - low for low, high in spans)
