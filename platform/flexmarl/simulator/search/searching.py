"""A search over the mechanism space: the least time per step of one workload, at equal devices, tasks and groups.

Candidates are settings that a user could give: a preset, and changes of mechanism slots, of their numbers, and of how a
fixed number of devices is split. First come all presets, each with the devices split as its work is; then all wide
steps away from the best one, which tells what each setting gains alone; then candidates by chance; then steps from the
best one there is, those never gone first, and beside them several at once: all that gained, each two of these, or two
by chance. Nobody leads by one lucky seed, and no step seems to lose because its leader was lucky: a leader is played
under several of them, and gains are over their mean. The best ones are played longer.

Invariants: equal budgets and seeds find equal settings; what rules refuse, what exceeds the lag bound, what holds more
or fewer devices, and what trains shorter replies than it makes is no candidate, and neither is what trains less per
step than the preset that is searched against; two candidates with the same specification are one.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from itertools import combinations, count, islice
from math import inf
from statistics import fmean
from typing import NamedTuple

from flexmarl.simulator.reporting.report import SimulationReport
from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.scenario import Scenario
from flexmarl.simulator.search.axes import LAYOUT, NARROW, WIDE
from flexmarl.simulator.search.candidates import Candidate, FoundCandidate, SearchSpace, SearchStep, is_read

LEAST_RATIO = 0.98
"""Least mean length of trained rows over that of generated ones, and least share of the tokens per step of the preset
that is searched against."""
DRAWN = 0.15
"""Part of the trials that are drawn by chance."""
AT_ONCE, SINGLE = 6, 3
"""Candidates that are tried before the next ones are chosen, and how many of these are a single step away."""
LEADING = 3
"""Seeds under which a candidate was played before others are steps away from it."""

Play = Callable[[list[Scenario]], list[SimulationReport | None]]
"""Simulates scenarios, in any order and at the same time; None for one that came to no end."""
Tell = Callable[[int, FoundCandidate], None]
"""Told of every trial, by its number."""


class Length(NamedTuple):
    """How long candidates are played, under how many seeds, and how many of them."""

    steps: int
    seeds: int
    candidates: int


LENGTHS = (Length(2, 2, 6), Length(4, 3, 3))
"""Of those that are left after the trials, which are short and under the first seed."""
SEEDS = range(LENGTHS[-1].seeds)
UNSEEN = range(100, 103)
"""No search plays these."""


class Pair(NamedTuple):
    """What is searched against and what was found, under the same seeds."""

    over: FoundCandidate
    own: FoundCandidate


def search(
    within: SearchSpace, trials: int, seed: int, play: Play, tell: Tell = lambda number, found: None
) -> list[FoundCandidate]:
    """Return the best candidates of so many trials, the best one first. All were played under the same seeds."""
    hunt = _Hunt(within, trials, chance.mixed(0, seed), play, tell)
    hunt.open()
    hunt.climb()
    found = hunt.found
    for length in LENGTHS:
        found = _longer(within, found[: length.candidates], length, play)
    return found


def against(within: SearchSpace, found: FoundCandidate, seeds: range, play: Play) -> Pair | None:
    """Play a candidate and the preset that is searched against, long and under some seeds; None if one has no end."""
    steps = LENGTHS[-1].steps
    over, own = (_played(within, one, steps, seeds, play) for one in (Candidate(within.over), found.candidate))
    return Pair(over, own) if over and own else None


class _Hunt:
    """The trials. Its candidates are in the order of their times per step."""

    def __init__(self, within: SearchSpace, trials: int, key: int, play: Play, tell: Tell) -> None:
        self.found: list[FoundCandidate] = []
        self._within, self._left, self._key, self._play, self._tell = within, trials, key, play, tell
        self._all = trials
        self._tried: set[str] = set()
        self._least = 0.0
        """Tokens per step that a candidate trains at least."""
        self._gains: dict[tuple[str, str], float] = {}
        """Name of a step -> what it gained last, as a share."""
        self._idle: set[tuple[str, str]] = set()
        """Steps that made no difference: these and those like them are not gone again."""

    def open(self) -> None:
        """Try the presets, then every wide step from the best one, as long as half of the trials, then some by chance.

        What each step gains leads to all others. The split waits: it follows the work already, and a device more or
        less gains no more than chance does.
        """
        self._try(list(self._within.first()))
        leader, half = self._leader(set()), self._left // 2
        near = [step for step in self._within.near(leader, WIDE) if step.path != LAYOUT] if leader else []
        while leader and self._left > half and (steps := self._single(near, min(AT_ONCE, self._left - half))):
            self._go(leader, steps, [])
        self._draw(min(round(DRAWN * self._all), self._left // 2))

    def _draw(self, wanted: int) -> None:
        """Try candidates by chance."""
        number = 0
        while wanted > 0 and self._left > 0 and number < 100 * self._all:
            keys = [chance.mixed(self._key, number + n) for n in range(wanted)]
            wanted -= len(self._try([self._within.drawn(key) for key in keys]))
            number += len(keys)

    def climb(self) -> None:
        """Go on from the best candidate to what is a step or more away and better; when nothing is, from the next."""
        all_left, done = self._left, set[str]()
        while self._left > 0 and (leader := self._leader(done)):
            stride = WIDE if 3 * self._left > all_left else NARROW
            near = [step for step in self._within.near(leader, stride) if step.alike not in self._idle]
            steps = self._single(near, min(SINGLE, self._left))
            several = self._together(leader, near, min(AT_ONCE, self._left) - len(steps))
            if not steps and not several:
                done.add(leader.name)
            self._go(leader, steps, several)

    def _go(self, leader: FoundCandidate, steps: list[SearchStep], several: list[Candidate]) -> None:
        """Try single steps, and several at once, and note what each single one gained."""
        times = {id(one.candidate): one.first_s for one in self._try([one.candidate for one in steps] + several)}
        for step in steps:
            seconds = times.get(id(step.candidate), inf)
            self._gains[step.name] = 1.0 - seconds / leader.step_s  # had it luck, nothing else would seem to gain
            if seconds == leader.first_s:
                self._idle.add(step.alike)

    def _leader(self, done: Set[str]) -> FoundCandidate | None:
        """Return the best candidate that is not done, the best under as many seeds as a leader is played under."""
        while leader := next((one for one in self.found if one.name not in done), None):
            if len(leader.reports) >= LEADING:
                return leader
            sure, others = self._sure(leader), [one for one in self.found if one is not leader]
            self.found = sorted([*others, *([sure] if sure else [])], key=lambda one: one.step_s)
        return None

    def _sure(self, found: FoundCandidate) -> FoundCandidate | None:
        """Play a candidate under the seeds that are missing for it to lead; None if one has no end."""
        seeds = range(len(found.reports), LEADING)
        made = [one for seed in seeds if (one := self._within.made(found.candidate, seed=seed)) is not None]
        reports = found.reports + tuple(report for report in self._play(made) if report is not None)
        return replace(found, reports=reports) if len(reports) == LEADING else None

    def _single(self, near: list[SearchStep], many: int) -> list[SearchStep]:
        """Return the next steps: those that were never gone, then those that gained most when they were gone last."""
        order = {id(step): chance.mixed(self._key, len(self._tried) * 1000 + n) for n, step in enumerate(near)}
        near = sorted(near, key=lambda step: (-self._gains.get(step.name, inf), order[id(step)]))
        kept, paths = list[SearchStep](), list[str]()
        for step in near:
            if len(kept) == many:
                break
            along_one = paths.count(step.path) >= max(1, many // 2)  # never all of them
            if not along_one and self._is_new(step.candidate):
                kept.append(step)
                paths.append(step.path)
        return kept

    def _together(self, leader: FoundCandidate, near: list[SearchStep], wanted: int) -> list[Candidate]:
        """List what is several steps away: all that gained alone, then two of these; then two by chance."""
        gained = sorted((s for s in near if self._gains.get(s.name, 0.0) > 0.0), key=lambda s: -self._gains[s.name])
        kept: dict[str, Candidate] = {}
        for steps in ([*self._agreeing(leader, gained)], *self._best_two(gained), *self._two(near, wanted)):
            if len(kept) == wanted:
                break
            one = leader.candidate.beside(steps)
            made = self._read_together(leader, steps)
            if made is not None and len(steps) > 1 and self._is_new(one):
                kept.setdefault(made.spec.model_dump_json(), one)
        return list(kept.values())

    def _read_together(self, leader: FoundCandidate, steps: list[SearchStep]) -> Scenario | None:
        """Return what steps lead to, None if one of them or what the leader has makes no difference then."""
        made = self._within.made(leader.candidate.beside(steps))
        apart = len({step.path for step in steps}) == len(steps)
        had = (path for path in leader.candidate.chosen if is_read(leader.scenario, path))
        read = made is not None and all(is_read(made, path) for path in (*(step.path for step in steps), *had))
        return made if apart and read else None

    def _agreeing(self, leader: FoundCandidate, gained: list[SearchStep]) -> list[SearchStep]:
        """Return steps that all make a difference beside each other, those that gained most before others."""
        kept: list[SearchStep] = []
        for step in gained:
            if self._read_together(leader, [*kept, step]) is not None:
                kept.append(step)
        return kept

    def _best_two(self, gained: list[SearchStep]) -> list[list[SearchStep]]:
        """Return all twos, those first whose steps gained most alone: a gain is a sign even where it is not the sum."""
        return sorted(map(list, combinations(gained, 2)), key=lambda two: -sum(self._gains[step.name] for step in two))

    def _two(self, near: list[SearchStep], wanted: int) -> Iterator[list[SearchStep]]:
        """Yield two steps by chance: what only gains together is not found step by step."""
        key = chance.mixed(self._key, len(self._tried))
        for number in range(4 * wanted if near else 0):
            yield [near[chance.mixed(key, 2 * number + n) % len(near)] for n in (0, 1)]

    def _is_new(self, candidate: Candidate) -> bool:
        made = self._within.made(candidate)
        return made is not None and made.spec.model_dump_json() not in self._tried

    def _try(self, candidates: list[Candidate]) -> list[FoundCandidate]:
        """Play what was not played before, as far as the trials last; returns what is a candidate."""
        fresh = []
        for candidate in islice(filter(self._is_new, candidates), self._left):
            made = self._within.made(candidate)
            assert made is not None
            if made.spec.model_dump_json() not in self._tried:
                self._tried.add(made.spec.model_dump_json())
                fresh.append((candidate, made))
        number = self._all - self._left
        self._left -= len(fresh)
        reports = self._play([made for _, made in fresh])
        played = zip(count(number + 1), fresh, reports, strict=False)
        numbers = {id(one[0]): at for at, one, report in played if report is not None}
        tried = [
            FoundCandidate(*one, (report,)) for one, report in zip(fresh, reports, strict=True) if report is not None
        ]
        if not self._least:  # the first one is what is searched against
            self._least = LEAST_RATIO * tried[0].reports[0].tokens if tried else inf
        tried = [one for one in tried if _trains_as_much(one.reports, self._least)]
        for one in tried:
            self._tell(numbers[id(one.candidate)], one)
        by_time = {one.first_s: one for one in reversed([*self.found, *tried])}  # who takes as long does the same
        self.found = sorted(by_time.values(), key=lambda one: one.step_s)
        return tried


def _longer(within: SearchSpace, found: list[FoundCandidate], length: Length, play: Play) -> list[FoundCandidate]:
    seeds = range(length.seeds)
    before = _played(within, Candidate(within.over), length.steps, seeds, play)
    least = LEAST_RATIO * fmean(report.tokens for report in before.reports) if before else 0.0
    played = [_played(within, one.candidate, length.steps, seeds, play) for one in found]
    kept = [one for one in played if one is not None and _trains_as_much(one.reports, least)]
    return sorted(kept, key=lambda one: one.step_s)


def _played(within: SearchSpace, candidate: Candidate, steps: int, seeds: range, play: Play) -> FoundCandidate | None:
    made = [one for seed in seeds if (one := within.made(candidate, steps, seed)) is not None]
    reports = [report for report in play(made) if report is not None]
    return FoundCandidate(candidate, made[0], tuple(reports)) if made and len(reports) == len(seeds) else None


def _trains_as_much(reports: tuple[SimulationReport, ...], least: float) -> bool:
    ratio = min(report.length_ratio for report in reports)
    return ratio >= LEAST_RATIO and fmean(report.tokens for report in reports) >= least
