"""Own lag of a policy's rows: trained version minus the version that made them. Pure functions on plain values.

Admission is the economy: a cohort starts only when the steps that will come before its own fit every bound, so that
little is made in vain. The sweep is the guarantee: right before a micro-batch is cut, when the weights its rows will
train are known, whatever is older than the bound is taken out. Nothing here trusts the other: the sweep holds the bound
whatever was admitted, replayed, carried over or followed newer weights on its way. With `train` at the cut there is
admission alone: what was admitted is trained, however old it grew.

A row's lag is told in three ways, since no one of them bounds another: from its first token, from the moment its group
settled, and token by token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flexmarl.contracts.specification.mechanisms import LagPolicy


@dataclass(frozen=True, slots=True)
class Verdict:
    """May something start, and why not."""

    allowed: bool
    reason: str = ""


def admit(lags: Mapping[str, LagPolicy], to_come: Mapping[str, int], playing: int) -> Verdict:
    """Tell whether a cohort may start under the committed vector.

    `to_come`: optimizer steps of each policy that will be taken before the cohort's rows are trained.
    `playing`: unsettled groups of older cohorts.
    """
    for name, lag in lags.items():
        steps = to_come.get(name, 0)
        if steps > lag.bound:
            return Verdict(False, f"{name} takes {steps} steps before these rows, its bound is {lag.bound}")
        if playing and lag.at_admission == "wait":
            return Verdict(False, f"{name} waits for {playing} older groups to settle")
    return Verdict(True)


@dataclass(slots=True)
class Ages:
    """The versions that made a policy's rows of one group."""

    done: int
    """Version committed when the group settled."""
    rows: dict[int, int] = field(default_factory=dict)
    """Version of the first token -> rows."""
    tokens: dict[int, int] = field(default_factory=dict)
    """Version -> tokens."""

    @property
    def oldest(self) -> int:
        """Version of the oldest token. Only where there is a row."""
        return min(self.rows)


def add_row(ages: Ages, pinned: int, tokens: int, segments: tuple[int, ...]) -> None:
    """Count a row. Without segments the pinned version made all of it."""
    if not segments:
        ages.rows[pinned] = ages.rows.get(pinned, 0) + 1
        ages.tokens[pinned] = ages.tokens.get(pinned, 0) + tokens
        return
    pairs = list(zip(segments[::2], segments[1::2], strict=True))
    first = min(version for version, _ in pairs)
    ages.rows[first] = ages.rows.get(first, 0) + 1
    for version, count in pairs:
        ages.tokens[version] = ages.tokens.get(version, 0) + count


def fits(ages: Ages, version: int, bound: int) -> bool:
    """Tell whether rows may train the weights of a version: the sweep's one question."""
    return version - ages.oldest <= bound


Fate = Literal["keep", "drop", "refresh"]


def sweep(ages: Ages | None, version: int, lag: LagPolicy) -> Fate:
    """Decide over a policy's rows of a group right before they are cut. Rows of no known age are never trained."""
    if ages is not None and (lag.at_cut == "train" or fits(ages, version, lag.bound)):
        return "keep"
    return "refresh" if lag.at_cut == "refresh" else "drop"


def must_wait(oldest: int, version: int, lag: LagPolicy) -> bool:
    """Tell whether a step would make a playing group too old that its policy rather waits for."""
    return lag.at_cut == "wait" and version + 1 - oldest > lag.bound


@dataclass(slots=True)
class LagCounts:
    """How old what a step trained was: lag -> rows by first token, rows by settlement, tokens."""

    start: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    token: dict[int, int] = field(default_factory=dict)


def count(counts: LagCounts, ages: Ages, version: int) -> None:
    """Add the rows of a group that will train the weights of a version."""
    for first, rows in ages.rows.items():
        counts.start[version - first] = counts.start.get(version - first, 0) + rows
    lag = version - ages.done
    counts.done[lag] = counts.done.get(lag, 0) + sum(ages.rows.values())
    for made_by, tokens in ages.tokens.items():
        counts.token[version - made_by] = counts.token.get(version - made_by, 0) + tokens


@dataclass(frozen=True, slots=True)
class LagSummary:
    mean: float
    p99: float
    max: float


def spread(counts: Mapping[int, int]) -> LagSummary | None:
    """Return mean, 99th percentile and maximum of lags, None when nothing was counted."""
    total = sum(counts.values())
    if not total:
        return None
    below, p99 = 0, 0
    for lag in sorted(counts):
        below += counts[lag]
        p99 = lag
        if below * 100 >= total * 99:
            break
    mean = sum(lag * number for lag, number in counts.items()) / total
    return LagSummary(mean, float(p99), float(max(counts)))


def length_ratio(trained: Iterable[int], generated: Iterable[int]) -> float | None:
    """Return mean length of trained rows over that of generated rows. Each argument: rows, then tokens."""
    (rows, tokens), (all_rows, all_tokens) = trained, generated
    if not rows or not all_tokens:
        return None
    return (tokens / rows) / (all_tokens / all_rows)
