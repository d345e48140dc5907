"""A running run is proposed another split where its rates differ from the plan and it pays, and never to and fro.

A run is played as a plan's assumption beside a load that changes: rates of steps with noise, the same decisions as of a
running run, and the best split of eight devices by the measured rates.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log2

import pytest

from flexmarl.algorithms.replanning import (
    ComparedRate,
    ReplanHistory,
    ReplanOptions,
    RunAsMeasured,
    SettingCandidate,
    applied,
    changed,
    decide,
    dismissed,
    hold_s,
    learned,
    outside,
    seen,
    withdrawn,
)

OPTIONS = ReplanOptions()
DEVICES = 8
Work = tuple[float, float]
"""Device seconds of a step: to generate, and to train."""


def step_s(work: Work, engines: int) -> float:
    """The seconds of a step whose stages overlap."""
    return max(work[0] / engines, work[1] / (DEVICES - engines))


def best(work: Work) -> int:
    return min(range(1, DEVICES), key=lambda engines: step_s(work, engines))


@dataclass
class Watched:
    """A run that is looked at after every step, as `simulations.replanning` does."""

    load: Callable[[int], Work]
    """Step -> its work."""
    planned: Work = (40.0, 40.0)
    noise: float = 0.0
    budget: int = 100_000
    takes: bool = False
    """Whoever is asked applies each proposal at once."""
    cost_s: float = 60.0
    options: ReplanOptions = OPTIONS
    now: float = 1000.0
    step: int = 0
    log: list[tuple[int, str, int]] = field(default_factory=list)
    """Step, what happened, engines."""

    def __post_init__(self) -> None:
        self.engines, self.assumed = best(self.planned), self.planned
        self.assumed_step_s = step_s(self.planned, self.engines)
        self.history, self.proposed = ReplanHistory(0.0), 0
        self.rng, self.recent = random.Random(1), list[tuple[float, Work]]()
        self.ends = list[float]()

    def play(self, steps: int) -> "Watched":
        for _ in range(steps):
            work = tuple(one * self.rng.uniform(1 - self.noise, 1 + self.noise) for one in self.load(self.step))
            took = step_s(work, self.engines)  # type: ignore[arg-type]
            self.now, self.step = self.now + took, self.step + 1
            self.ends.append(self.now)
            self.recent = [*self.recent, (took, work)][-self.options.steps :]  # type: ignore[list-item]
            if len(self.recent) == self.options.steps:
                self.look()
        return self

    def look(self) -> None:
        took = sum(one for one, _ in self.recent) / len(self.recent)
        work = tuple(sum(one[side] for _, one in self.recent) / len(self.recent) for side in (0, 1))
        run = RunAsMeasured(str(self.engines), len(self.recent), took, self.budget - self.step)
        self.history = learned(self.options, self.history, run)
        rates = [
            ComparedRate("generation", "a", "s", self.assumed[0], work[0], abs(work[0] - self.assumed[0]) / 8 / took),
            ComparedRate("training", "a", "s", self.assumed[1], work[1], abs(work[1] - self.assumed[1]) / 8 / took),
            ComparedRate("step", "", "s", self.assumed_step_s, took, abs(took - self.assumed_step_s) / took),
        ]
        began = self.ends[-1 - self.options.steps] if len(self.ends) > self.options.steps else 0.0
        self.history, chooses = seen(self.history, bool(outside(self.options, rates)), began, self.now)
        if not chooses:
            return
        wanted = best(work)  # type: ignore[arg-type]
        gain = 1.0 - step_s(work, wanted) / step_s(work, self.engines)  # type: ignore[arg-type]
        way = (wanted > self.engines) - (wanted < self.engines)
        found = SettingCandidate(str(wanted), way, gain, gain, self.cost_s) if way else None
        made = decide(self.options, self.history, run, found, self.now)
        if made.outcome == "proposed" and wanted != self.proposed:
            self.history, self.proposed = made.history, wanted
            self.log.append((self.step, "proposed", wanted))
            if self.takes:
                self.history = applied(self.history, str(wanted), run, self.now)
                self.engines, self.proposed, self.recent = wanted, 0, []
                self.log.append((self.step, "applied", wanted))
                took *= 1.0 - gain
        elif self.proposed and wanted != self.proposed:
            self.history, self.proposed = withdrawn(self.history, self.now), 0
            self.log.append((self.step, "withdrawn", self.engines))
        if made.outcome != "hold":
            self.assumed, self.assumed_step_s = work, took  # type: ignore[assignment]

    def times(self, what: str) -> int:
        return sum(one[1] == what for one in self.log)


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
def test_noise_within_the_dead_band_proposes_nothing_in_a_thousand_steps(noise: float, takes: bool) -> None:
    assert Watched(lambda _: (40.0, 40.0), noise=noise, takes=takes).play(1000).log == []


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_step_change_proposes_once(noise: float, takes: bool) -> None:
    run = Watched(lambda step: (40.0, 40.0) if step < 300 else (160.0, 40.0), noise=noise, takes=takes).play(1000)
    assert run.times("proposed") == 1
    assert run.times("withdrawn") == 0
    step, _, engines = run.log[0]
    assert 300 < step <= 300 + 2 * OPTIONS.steps + 1
    assert engines == best((160.0, 40.0))


def test_a_plan_that_was_wrong_from_the_beginning_is_told_once() -> None:
    run = Watched(lambda _: (40.0, 160.0)).play(500)
    assert [(what, engines) for _, what, engines in run.log] == [("proposed", 2)]


@pytest.mark.parametrize("period", [10, 30, 100])
@pytest.mark.parametrize("takes", [False, True])
def test_a_load_that_goes_to_and_fro_is_followed_ever_more_seldom(period: int, takes: bool) -> None:
    loads = ((160.0, 40.0), (40.0, 160.0))
    run = Watched(lambda step: loads[step // period % 2], takes=takes).play(period * 200)
    hold = max(OPTIONS.hold_s, OPTIONS.steps * 20.0)
    most = log2(run.now / hold) + 1
    steps = [step for step, what, _ in run.log if what == "proposed"]
    assert 1 <= len(steps) <= 2 * most, "of 200 times that it asks for another split: two in one direction at the most"
    assert hold_s(OPTIONS, run.history, 20.0, -run.history.direction) >= 2 * hold
    late = [step for step in steps if step > period * 100]
    assert len(late) <= len(steps) - len(late), "no more in the second half than in the first"


def test_what_is_not_felt_or_not_known_is_not_outside() -> None:
    rate = ComparedRate("load", "a", "s", 0.004, 0.04, felt=0.01)
    assert not rate.outside(OPTIONS)
    assert replace(rate, felt=0.06).outside(OPTIONS)
    assert replace(rate, felt=0.06, measured=0.0003).outside(OPTIONS), "a tenth is as far off as ten times"
    assert not replace(rate, felt=0.06, measured=0.0049).outside(OPTIONS)
    assert not replace(rate, felt=0.9, assumed=0.0).outside(OPTIONS)


RUN = RunAsMeasured("4", 8, 20.0, 1000)
FOUND = SettingCandidate("6", 1, 0.3, 0.2, 60.0)


NEW = ReplanHistory(0.0)


def outcome(history: ReplanHistory = NEW, run: RunAsMeasured = RUN, now: float = 1000.0, **found) -> str:
    return decide(OPTIONS, history, run, replace(FOUND, **found), now).outcome


def test_a_setting_is_proposed_when_its_lower_end_is_worth_it_and_the_rest_of_the_run_pays_for_it() -> None:
    assert outcome() == "proposed"
    assert outcome(gain_least=0.09) == "not_worth"
    assert outcome(setting="4") == "no_better"
    assert decide(OPTIONS, ReplanHistory(0.0), RUN, None, 1000.0).outcome == "no_better"
    assert outcome(run=replace(RUN, left=30)) == "proposed", "30 steps save 120 s, twice the cost"
    assert outcome(run=replace(RUN, left=29)) == "does_not_pay"


def test_a_change_waits_for_the_hold_and_a_reversal_for_twice_as_long_each_time() -> None:
    once = changed(ReplanHistory(0.0), 1, 1000.0)
    assert outcome(once, now=1000.0 + OPTIONS.hold_s - 1) == "hold"
    assert outcome(once, now=1000.0 + OPTIONS.hold_s) == "proposed"
    longest = max(OPTIONS.hold_s, OPTIONS.steps * RUN.step_s)
    history, now = once, 1000.0
    for turn in range(1, 4):
        way = -history.direction
        made = decide(OPTIONS, history, RUN, replace(FOUND, direction=way), now)
        assert (made.outcome, made.until) == ("hold", now + longest * 2**turn)
        now = made.until
        made = decide(OPTIONS, history, RUN, replace(FOUND, direction=way), now)
        assert made.outcome == "proposed"
        history = made.history
    assert withdrawn(history, now).reversals == history.reversals + 1


def test_a_setting_that_did_not_help_is_not_proposed_again_until_steps_have_changed_by_a_quarter() -> None:
    there = applied(ReplanHistory(0.0), "6", RUN, 1000.0)
    assert learned(OPTIONS, there, replace(RUN, setting="6", step_s=15.0)).tried == ()
    worse = learned(OPTIONS, there, replace(RUN, setting="6", step_s=19.9))
    assert [one.setting for one in worse.tried] == ["6"]
    assert worse.before is None
    back = learned(OPTIONS, worse, replace(RUN, step_s=21.0))
    assert outcome(back, now=9000.0) == "tried"
    assert outcome(back, now=9000.0, setting="7") == "proposed"
    moved = learned(OPTIONS, worse, replace(RUN, step_s=26.0))
    assert outcome(moved, now=9000.0) == "proposed"


def test_a_dismissed_setting_is_not_proposed_again() -> None:
    history = dismissed(ReplanHistory(0.0), "6", RUN, 1000.0)
    assert outcome(history, now=9000.0) == "tried"
    assert outcome(history, run=replace(RUN, setting="5"), now=9000.0) == "proposed", "it was dismissed from 4"
