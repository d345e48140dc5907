"""Whether a running run is planned anew, and whether it is proposed another setting. Pure: figures in, a decision out.

A plan assumed rates; the run measures its own. As long as each measured rate is within the dead band around what was
assumed, or differs by too little of a step to be felt, nothing is looked for. Outside of it settings are chosen anew
(by whoever calls), and the best one is proposed if even the lower end of what it saves is worth a change, and the rest
of the run saves a multiple of what the change costs.

It never goes to and fro (`steadiness`): a proposal against the direction of the last change, or after one that was
withdrawn, waits for twice the hold, the next one for four times; unlike those of a fleet these reversals are not
forgotten, since each change costs a start. A difference counts once whole steps were measured after it was first seen,
so that no split is chosen for a mixture of before and after. A setting that was taken and did not make steps shorter,
and one that somebody dismissed, is not proposed again from where it was tried, until the time per step there has
changed by a quarter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from flexmarl.algorithms.steadiness import counted, has_moved, least_hold_s

Outcome = Literal["proposed", "no_better", "not_worth", "does_not_pay", "tried", "hold"]


@dataclass(frozen=True, slots=True)
class ReplanOptions:
    band: float = 0.25
    """A measured rate may be so much larger than the assumed one, or the assumed one than it."""
    felt: float = 0.05
    """Share of a step that the difference must make, for a rate outside of the band to count."""
    worth: float = 0.10
    """Share of a step that another setting saves at its lower end, at the least."""
    pays: float = 2.0
    """How many times what the change costs the rest of the run must save."""
    steps: int = 8
    """Newest train steps that are measured."""
    hold_s: float = 120.0
    """Least time between two changes in one direction."""


@dataclass(frozen=True, slots=True)
class ComparedRate:
    """What a plan assumed of a figure, and what a run measured."""

    name: str
    of: str
    """Policy or role; empty: of the run."""
    unit: str
    assumed: float
    measured: float
    felt: float
    """Share of a step by which the difference changes it, at the most."""

    def outside(self, options: ReplanOptions) -> bool:
        """Tell whether the plan was wrong about it, in a way that matters."""
        if self.assumed <= 0.0 or self.measured <= 0.0:
            return False
        ratio = self.measured / self.assumed
        return max(ratio, 1.0 / ratio) > 1.0 + options.band and self.felt >= options.felt


@dataclass(frozen=True, slots=True)
class RunAsMeasured:
    """A run as it is."""

    setting: str
    """Names what may be chosen anew; equal names are equal settings."""
    steps: int
    """Train steps that were measured."""
    step_s: float
    left: int
    """Train steps until the end of its budget."""


@dataclass(frozen=True, slots=True)
class SettingCandidate:
    """The best other setting, as predicted by the measured rates."""

    setting: str
    direction: int
    """1: more for rollout, -1: more for training."""
    gain: float
    """Share of a step that it saves, likely."""
    gain_least: float
    cost_s: float
    """Until as many steps are made as now, longer than the run would need for them."""


@dataclass(frozen=True, slots=True)
class TriedSetting:
    """A setting that did not help, or was not wanted, at another one whose steps took so long."""

    setting: str
    at: str
    step_s: float


@dataclass(frozen=True, slots=True)
class ReplanHistory:
    since: float
    """When something was proposed, withdrawn, dismissed or applied last, or is counted from."""
    wrong_since: float = 0.0
    """When a rate was first seen outside of the band, of those that are; 0: none is."""
    direction: int = 0
    """Of the last proposal; 0: it was withdrawn, or there was none."""
    reversals: int = 0
    before: TriedSetting | None = None
    """The setting that the run has since the last change, where it had another one before; until it is known whether
    that helped."""
    tried: tuple[TriedSetting, ...] = ()


@dataclass(frozen=True, slots=True)
class Replanned:
    outcome: Outcome
    history: ReplanHistory
    until: float = 0.0
    """When the hold ends, where that is what keeps it."""


def outside(options: ReplanOptions, rates: Iterable[ComparedRate]) -> list[ComparedRate]:
    """List the rates that the plan was wrong about."""
    return [one for one in rates if one.outside(options)]


def hold_s(options: ReplanOptions, history: ReplanHistory, step_s: float, direction: int) -> float:
    """Return how long after the last change one in this direction may be proposed, in seconds."""
    reverses = history.direction == -direction or (not history.direction and bool(history.reversals))
    return least_hold_s(options.hold_s, options.steps * step_s, history.reversals, reverses=reverses)


def seen(history: ReplanHistory, wrong: bool, began: float, now: float) -> tuple[ReplanHistory, bool]:
    """Note whether the plan is wrong over steps that began at a moment; whether settings are to be chosen anew."""
    if not wrong:
        return replace(history, wrong_since=0.0), False
    if not history.wrong_since:
        return replace(history, wrong_since=now), False
    return history, began >= history.wrong_since


def learned(options: ReplanOptions, history: ReplanHistory, run: RunAsMeasured) -> ReplanHistory:
    """Take in what a run's steps say about the last change, and about what was tried before."""
    before, tried = history.before, history.tried
    if before is not None and before.setting == run.setting:
        if run.step_s > before.step_s * (1.0 - options.worth / 2.0):
            tried = (*tried, before)
        before = None
    tried = tuple(one for one in tried if one.at != run.setting or not has_moved(one.step_s, run.step_s))
    return replace(history, before=before, tried=tried)


def decide(
    options: ReplanOptions, history: ReplanHistory, run: RunAsMeasured, found: SettingCandidate | None, now: float
) -> Replanned:
    """Decide whether the best other setting is proposed."""
    if found is None or found.setting == run.setting:
        return Replanned("no_better", history)
    if found.gain_least < options.worth:
        return Replanned("not_worth", history)
    if found.gain_least * run.step_s * run.left < options.pays * found.cost_s:
        return Replanned("does_not_pay", history)
    if any(one.setting == found.setting and one.at == run.setting for one in history.tried):
        return Replanned("tried", history)
    until = history.since + hold_s(options, history, run.step_s, found.direction)
    if now < until:
        return Replanned("hold", history, until)
    return Replanned("proposed", changed(history, found.direction, now))


def changed(history: ReplanHistory, direction: int, now: float) -> ReplanHistory:
    """Return the history after a change in a direction."""
    reverses = bool(direction) and history.direction == -direction
    return replace(history, since=now, direction=direction, reversals=counted(history.reversals, reverses=reverses))


def withdrawn(history: ReplanHistory, now: float) -> ReplanHistory:
    """Return the history after a proposal whose reason is gone: whatever is proposed next reverses that."""
    return replace(history, since=now, direction=0, reversals=counted(history.reversals, reverses=True))


def dismissed(history: ReplanHistory, setting: str, run: RunAsMeasured, now: float) -> ReplanHistory:
    """Return the history after somebody did not want a setting."""
    return replace(
        history, since=now, wrong_since=0.0, tried=(*history.tried, TriedSetting(setting, run.setting, run.step_s))
    )


def applied(history: ReplanHistory, setting: str, run: RunAsMeasured, now: float) -> ReplanHistory:
    """Return the history that goes on with a setting, until it is known whether that helped."""
    return replace(history, since=now, wrong_since=0.0, before=TriedSetting(setting, run.setting, run.step_s))
