"""The size of a fleet of engines by measured rates, with a dead band. Pure: figures in, a size with its reason out.

The rule is that of AstraFlow (arXiv 2605.15565). Let w be the share of time in which trainers wait for samples, and p
the share in which engines have groups of training to play: what is consumed, of what could be generated. Above the band
the fleet grows to engines / (1 - w); below it, to engines * p * 1.1 where that is less. In between nothing changes.

Three things keep it still. A change is judged by whole steps with the same engines. A change against the last one's
direction must wait for twice the hold, the next one for four times, and so on, so a load that asks for the one and the
other is followed ever more seldom; a load that has asked for nothing for twice that time halves the wait. And engines
that have not shortened the steps by the lower edge of the band are given back, once: a fleet whose steps last as long
as their longest reply is not fed further, until the time per step changes by a quarter.
"""

from dataclasses import dataclass, replace
from math import ceil

from flexmarl.algorithms.steadiness import counted, has_moved, least_hold_s
from flexmarl.contracts.specification.scaling import Scaling

SPARE = 1.1
"""Engines that are kept when a fleet shrinks, over those that are needed."""
WORTH = 0.1
"""Part of the engines that a fleet gives back at the least: fewer are within what figures vary by."""
URGENT_WAIT = 0.5
"""Share of waiting that is outside any band: a fleet half as large as needed is not measured for long."""
URGENT_STEPS = 2
MOST_WAIT = 0.95
"""Share of waiting that is taken at most: above it the need says little."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class FleetBounds:
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class FleetRates:
    """What was measured over whole steps with the same engines. Seconds are sums over the steps."""

    engines: int
    steps: int
    seconds: float
    wait_s: float
    """In which trainers waited for samples."""
    play_s: float
    """In which groups of training were open."""
    groups: int

    @property
    def wait(self) -> float:
        """Return the share of time in which trainers waited."""
        return min(1.0, max(0.0, self.wait_s / self.seconds)) if self.seconds else 0.0

    @property
    def play(self) -> float:
        """Return the share of time in which engines had groups to play."""
        return min(1.0, max(0.0, self.play_s / self.seconds)) if self.seconds else 0.0

    @property
    def step_s(self) -> float:
        """Return the mean seconds of a step."""
        return self.seconds / self.steps

    @property
    def generated(self) -> float:
        """Return the groups per second that engines make while they have any to play."""
        return self.groups / self.play_s if self.play_s else 0.0

    @property
    def consumed(self) -> float:
        """Return the groups per second that trainers would take if they never waited."""
        busy = self.seconds - self.wait_s
        return self.groups / busy if busy > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class LearnedSize:
    """A size and how long steps took with it; 0 engines: nothing is known."""

    engines: int = 0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalingHistory:
    """What was changed before."""

    since: float
    """When the size was changed last, or is counted from."""
    direction: int = 0
    """Of the last change: 1 more, -1 fewer, 0 none yet."""
    reversals: int = 0
    before: LearnedSize = LearnedSize()
    """What the fleet grew from, until it is known whether that helped."""
    enough: LearnedSize = LearnedSize()
    """A size above which more engines did not help."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """A decision: the size, why, and the history after it."""

    engines: int
    why: str
    history: ScalingHistory


def suffices(options: Scaling, rates: FleetRates, history: ScalingHistory) -> bool:
    """Tell whether enough steps are measured to decide on: two, where trainers wait for most of the time."""
    if rates.steps >= options.steps:
        return True
    return rates.steps >= URGENT_STEPS and rates.wait > URGENT_WAIT and not history.before.engines


def resize(
    options: Scaling, bounds: FleetBounds, rates: FleetRates, history: ScalingHistory, now: float
) -> Sizing | None:
    """Decide on the size of a fleet; None where it stays and nothing was learned.

    A result with the same number of engines only says what was learned.
    """
    learned = _learned(options, rates, history)
    size, why = _wanted(options, bounds, rates, learned)
    direction = (size > rates.engines) - (size < rates.engines)
    if not direction:
        learned = _calmed(options, rates, learned, now)
    if not direction or now - learned.since < hold_s(options, rates, learned, direction):
        return Sizing(rates.engines, "", learned) if learned != history else None
    reversed_ = learned.direction == -direction
    return Sizing(
        size,
        why,
        ScalingHistory(
            since=now,
            direction=direction,
            reversals=counted(learned.reversals, reverses=reversed_),
            before=LearnedSize(rates.engines, rates.step_s) if direction > 0 else LearnedSize(),
            enough=learned.enough,
        ),
    )


def hold_s(options: Scaling, rates: FleetRates, history: ScalingHistory, direction: int) -> float:
    """Return how long after the last change one in this direction may follow, in seconds: some steps at the least."""
    reverses = history.direction == -direction
    return least_hold_s(options.hold_s, options.steps * rates.step_s, history.reversals, reverses=reverses)


def _learned(options: Scaling, rates: FleetRates, history: ScalingHistory) -> ScalingHistory:
    """Take in what the figures say about the last growth, and about what was learned before."""
    before, enough = history.before, history.enough
    if before.engines and rates.engines > before.engines:
        helped = rates.step_s <= before.step_s * (1.0 - options.shrink_below)
        enough = enough if helped else before
        before = LearnedSize()
    elif enough.engines and has_moved(enough.step_s, rates.step_s):
        enough = LearnedSize()
    return replace(history, before=before, enough=enough)


def _calmed(options: Scaling, rates: FleetRates, history: ScalingHistory, now: float) -> ScalingHistory:
    """Forget a reversal of a load that asks for nothing, and has left the size alone for long enough."""
    if history.reversals and now - history.since >= 2.0 * hold_s(options, rates, history, -history.direction):
        return replace(history, since=now, reversals=history.reversals - 1)
    return history


def _wanted(options: Scaling, bounds: FleetBounds, rates: FleetRates, history: ScalingHistory) -> tuple[int, str]:
    """Return the size that the figures ask for, whenever it may be taken, and why."""
    engines, most = rates.engines, bounds.most
    if history.enough.engines:
        most = max(bounds.least, min(most, history.enough.engines))
    if engines > most:
        return most, f"{engines} engines made steps no shorter than {most}: {_figures(rates)}"
    if rates.wait > options.grow_above:
        wanted = ceil(engines / (1.0 - min(MOST_WAIT, rates.wait)) - _ROUNDING)
        size = max(engines, min(most, wanted))
        return size, f"trainers wait for more than {options.grow_above:.0%} of the time: {_figures(rates)}"
    if rates.wait < options.shrink_below and rates.groups:
        wanted = ceil(engines * rates.play * SPARE - _ROUNDING)
        size = min(engines, max(bounds.least, wanted))
        if engines - size < WORTH * engines:
            return engines, ""
        return size, f"trainers wait for less than {options.shrink_below:.0%} of the time: {_figures(rates)}"
    return engines, ""


def _figures(rates: FleetRates) -> str:
    return (
        f"in {rates.steps} steps of {rates.step_s:.3g} s they waited for {rates.wait:.1%}, and engines had groups to "
        f"play for {rates.play:.1%}; {rates.generated:.3g} groups/s are generated, {rates.consumed:.3g} can be consumed"
    )
