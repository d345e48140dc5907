"""A search over the mechanism space: the least time per step of one workload, at equal devices, tasks and groups.

Candidates are settings that a user could give: a preset, and changes of mechanism slots, of their numbers, and of how a
fixed number of devices is split. First come all presets, each with the devices split as its work is; then candidates by
chance; then, for most of the trials, steps away from the best one of either of two presets, at last from the best one
alone, at first wide steps: settings that were never gone along, then those that gained most wherever they were gone
last, and beside them several at once, all that gained or two by chance. Nobody leads by one lucky seed: whoever would
is played under more of them first. The best ones are played longer. Nothing is learned but which candidate was faster.

Invariants: equal budgets and seeds find equal settings; what rules refuse, what exceeds the lag bound, what holds more
or fewer devices, and what trains shorter replies than it makes is no candidate, and neither is what trains less per
step than the preset that is searched against; two candidates with the same specification are one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import ceil, inf
from statistics import fmean
from typing import Any, NamedTuple

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.reads import READ, missing
from flexmarl.contracts.resolve import layered
from flexmarl.simulator.reporting.report import Report
from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario
from flexmarl.simulator.search.axes import LAYOUT, NARROW, WIDE, Axis, axes, balanced, devices, laid
from flexmarl.simulator.search.bounds import Asks, asks

LEAST_RATIO = 0.98
"""Least mean length of trained rows over that of generated ones, and least share of the tokens per step of the preset
that is searched against."""
DRAWN = 0.15
"""Part of the trials that are drawn by chance."""
AT_ONCE, SINGLE = 6, 4
"""Candidates that are tried before the next ones are chosen, and how many of these are a single step away."""
STARTS = 2
"""Presets whose best candidates are gone on from at first; one in the end."""
LEADING = 3
"""Seeds under which a candidate was played before others are steps away from it."""

Play = Callable[[list[Scenario]], list[Report | None]]
"""Simulates scenarios, in any order and at the same time; None for one that came to no end."""
Tell = Callable[[int, "Found"], None]
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


@dataclass(frozen=True, slots=True)
class Candidate:
    preset: str
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """Path of an axis -> value."""

    @property
    def changes(self) -> dict[str, Any]:
        """Return what is laid over the workload and the preset."""
        return layered(*(laid(path, value) for path, value in self.chosen.items()))


@dataclass(frozen=True, slots=True)
class Found:
    candidate: Candidate
    scenario: Scenario
    """Of its first seed."""
    reports: tuple[Report, ...]
    """One for each seed."""

    @property
    def step_s(self) -> float:
        """Return the mean time per step over its seeds."""
        return fmean(report.step_s for report in self.reports)

    @property
    def first_s(self) -> float:
        """Return the time per step under the first seed, which every candidate is played under."""
        return self.reports[0].step_s

    @property
    def name(self) -> str:
        """Return what no other candidate is called."""
        return self.scenario.spec.model_dump_json()


class Pair(NamedTuple):
    """What is searched against and what was found, under the same seeds."""

    over: Found
    own: Found


class Step(NamedTuple):
    """A candidate that is one step away from another."""

    path: str
    called: str
    value: Any
    candidate: Candidate
    ordered: bool

    @property
    def name(self) -> tuple[str, str]:
        """Return what it is called wherever it is taken."""
        return self.path, self.called

    @property
    def alike(self) -> tuple[str, str]:
        """Return what all steps are called that make no difference if it makes none."""
        return (self.path, "") if self.ordered else self.name


@dataclass(frozen=True, slots=True)
class Space:
    """What may be chosen. `scenario` is a document as workloads have it, `bound` the highest lag bound, `over` the
    preset that is searched against."""

    scenario: Mapping[str, Any]
    over: str
    presets: tuple[str, ...]
    bound: int
    axes: tuple[Axis, ...]
    work: Asks
    devices: int
    room: Mapping[str, Any]
    """How many policies a device holds, whatever presets say: more room is no mechanism."""

    def made(self, candidate: Candidate, steps: int | None = None, seed: int = 0) -> Scenario | None:
        """Return the scenario of a candidate, None where it is none.

        The steps that begin before the first weights are too old for the next rows warm it up; a trial is as many more.
        """
        length = {"steps": steps or 1 + self.bound, "warm_up": 1 + self.bound, "seed": seed}
        try:
            made = compose(self.scenario, candidate.preset, layered(self.room, candidate.changes, length))
        except SpecProblems:
            return None
        rules = [made.spec.lag_policy_of(name) for name in made.spec.trainable_policies()]
        bounded = all(own.bound <= self.bound and own.at_cut != "train" for own in rules)
        return made if bounded and devices(made.spec) == self.devices else None

    def first(self) -> Iterator[Candidate]:
        """List the presets with devices split as their work is, and the one that is searched against as it is."""
        yield Candidate(self.over)
        for name in self.presets:
            plain = self._plain(name)
            if plain is not None:
                yield Candidate(name, {LAYOUT: self._balanced(plain)})

    def drawn(self, key: int) -> Candidate:
        """Return the candidate that belongs to a key: a preset and a few choices, or many."""
        preset = self.presets[chance.mixed(key, 0) % len(self.presets)]
        share, picked = chance.uniform(key, 1), chance.mixed(key, 3)
        chosen = {
            axis.path: axis.values[chance.mixed(picked, n) % len(axis.values)]
            for n, axis in enumerate(self.axes)
            if chance.uniform(chance.mixed(key, 4), n) < share or axis.path == LAYOUT
        }
        return Candidate(preset, chosen)

    def near(self, found: Found, stride: float = NARROW) -> Iterator[Step]:
        """List what is one step away from a candidate."""
        own = found.candidate
        for axis in self.axes:
            if not _is_read(found.scenario, axis.path):
                continue
            for called, value in axis.near(found.scenario.spec, stride).items():
                one = Candidate(own.preset, {**own.chosen, axis.path: value})
                yield Step(axis.path, called, value, one, axis.ordered)

    def _plain(self, preset: str) -> Scenario | None:
        try:
            return compose(self.scenario, preset, self.room)
        except SpecProblems:
            return None

    def _balanced(self, plain: Scenario) -> dict[str, Any]:
        return balanced(plain.spec, self.devices, self.work.trained, self.work.engines)


def space(document: Mapping[str, Any], over: str, presets: Iterable[str], bound: int) -> Space:
    """Return what is searched: all slots, their numbers, and every split of the devices that the document states."""
    before = compose(document, over)
    work, many = asks(before), devices(before.spec)
    own = axes(before.spec, many, work.trained, bound)
    room = before.spec.resources.model_dump(include={"engine_policies", "trainer_policies"})
    return Space(document, over, tuple(presets), bound, tuple(own), work, many, {"spec": {"resources": room}})


def search(within: Space, trials: int, seed: int, play: Play, tell: Tell = lambda number, found: None) -> list[Found]:
    """Return the best candidates of so many trials, the best one first. All were played under the same seeds."""
    hunt = _Hunt(within, trials, chance.mixed(0, seed), play, tell)
    hunt.open()
    hunt.climb()
    found = hunt.found
    for length in LENGTHS:
        found = _longer(within, found[: length.candidates], length, play)
    return found


def against(within: Space, found: Found, seeds: range, play: Play) -> Pair | None:
    """Play a candidate and the preset that is searched against, long and under some seeds; None if one has no end."""
    steps = LENGTHS[-1].steps
    over, own = (_played(within, one, steps, seeds, play) for one in (Candidate(within.over), found.candidate))
    return Pair(over, own) if over and own else None


class _Hunt:
    """The trials. Its candidates are in the order of their times per step."""

    def __init__(self, within: Space, trials: int, key: int, play: Play, tell: Tell) -> None:
        self.found: list[Found] = []
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
        """Try the presets, and some candidates by chance."""
        self._try(list(self._within.first()))
        wanted, number = round(DRAWN * self._all), 0
        while wanted > 0 and self._left > 0 and number < 100 * self._all:
            keys = [chance.mixed(self._key, number + n) for n in range(wanted)]
            wanted -= len(self._try([self._within.drawn(key) for key in keys]))
            number += len(keys)

    def climb(self) -> None:
        """Go on from the best candidates to what is a step or more away and better; when nothing is, from the next."""
        all_left, done, gone = self._left, set[str](), Counter[str]()
        while self._left > 0 and (leaders := self._leaders(ceil(STARTS * self._left / all_left), done)):
            leader = min(leaders, key=lambda one: gone[one.candidate.preset])
            gone[leader.candidate.preset] += 1
            stride = WIDE if 2 * self._left > all_left else NARROW
            near = [step for step in self._within.near(leader, stride) if step.alike not in self._idle]
            steps = self._single(near)
            wanted = min(AT_ONCE, self._left) - len(steps)
            several = [*self._gaining(leader, near), *self._pairs(leader, near, wanted)][:wanted]
            if not steps and not several:
                done.add(leader.name)
            self._go(leader, steps, several)

    def _go(self, leader: Found, steps: list[Step], several: list[Candidate]) -> None:
        """Try single steps, and several at once, and note what each single one gained."""
        times = {id(one.candidate): one.first_s for one in self._try([one.candidate for one in steps] + several)}
        for step in steps:
            gain = self._gains[step.name] = 1.0 - times.get(id(step.candidate), inf) / leader.first_s
            if not gain:
                self._idle.add(step.alike)

    def _leaders(self, many: int, done: Set[str]) -> list[Found]:
        """Return the best candidates of as many presets, the best first: they are best under as many seeds as lead."""
        while True:
            best: dict[str, Found] = {}
            for one in self.found:
                if one.name not in done:
                    best.setdefault(one.candidate.preset, one)
            leaders = list(best.values())[:many]
            unsure = next((one for one in leaders if len(one.reports) < LEADING), None)
            if unsure is None:
                return leaders
            sure, others = self._sure(unsure), [one for one in self.found if one is not unsure]
            self.found = sorted([*others, *([sure] if sure else [])], key=lambda one: one.step_s)

    def _sure(self, found: Found) -> Found | None:
        """Play a candidate under the seeds that are missing for it to lead; None if one has no end."""
        seeds = range(len(found.reports), LEADING)
        made = [one for seed in seeds if (one := self._within.made(found.candidate, seed=seed)) is not None]
        reports = found.reports + tuple(report for report in self._play(made) if report is not None)
        return replace(found, reports=reports) if len(reports) == LEADING else None

    def _single(self, near: list[Step]) -> list[Step]:
        """Return the next steps: those that were never gone, then those that gained most when they were gone last."""
        order = {id(step): chance.mixed(self._key, len(self._tried) * 1000 + n) for n, step in enumerate(near)}
        near = sorted(near, key=lambda step: (-self._gains.get(step.name, inf), order[id(step)]))
        kept, paths = list[Step](), list[str]()
        for step in near:
            if len(kept) == min(SINGLE, self._left):
                break
            if paths.count(step.name[0]) < SINGLE // 2 and self._is_new(step.candidate):  # never all along one path
                kept.append(step)
                paths.append(step.name[0])
        return kept

    def _gaining(self, leader: Found, near: list[Step]) -> list[Candidate]:
        """Return candidates that are several steps away, of each setting the one that gained most: all, then fewer."""
        gained = [step for step in near if self._gains.get(step.name, 0.0) > 0.0]
        best: dict[str, Step] = {}
        for step in sorted(gained, key=lambda step: -self._gains[step.name]):
            best.setdefault(step.path, step)
        chosen = [{path: step.value for path, step in islice(best.items(), many)} for many in range(len(best), 1, -1)]
        own = leader.candidate
        several = (Candidate(own.preset, {**own.chosen, **values}) for values in chosen)
        return [one for one in several if self._is_new(one)]

    def _pairs(self, leader: Found, near: list[Step], wanted: int) -> list[Candidate]:
        """Return candidates that are two steps away, by chance: what only gains together is not found step by step."""
        kept, key = list[Candidate](), chance.mixed(self._key, len(self._tried))
        for number in range(4 * wanted if near else 0):
            if len(kept) == wanted:
                break
            first, second = (near[chance.mixed(key, 2 * number + n) % len(near)] for n in (0, 1))
            both = Candidate(leader.candidate.preset, {**first.candidate.chosen, second.path: second.value})
            if first.path != second.path and self._is_new(both):
                kept.append(both)
        return kept

    def _is_new(self, candidate: Candidate) -> bool:
        made = self._within.made(candidate)
        return made is not None and made.spec.model_dump_json() not in self._tried

    def _try(self, candidates: list[Candidate]) -> list[Found]:
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
        tried = [Found(*one, (report,)) for one, report in zip(fresh, reports, strict=True) if report is not None]
        if not self._least:  # the first one is what is searched against
            self._least = LEAST_RATIO * tried[0].reports[0].tokens if tried else inf
        tried = [one for one in tried if _trains_as_much(one.reports, self._least)]
        for one in tried:
            self._tell(numbers[id(one.candidate)], one)
        by_time = {one.first_s: one for one in reversed([*self.found, *tried])}  # who takes as long does the same
        self.found = sorted(by_time.values(), key=lambda one: one.step_s)
        return tried


def _is_read(scenario: Scenario, path: str) -> bool:
    """Tell whether a setting makes a difference under the other ones, as far as the specification says."""
    pointer = "/" + path.replace(".", "/")
    return pointer not in READ or missing(scenario.spec, pointer) is None


def _longer(within: Space, found: list[Found], length: Length, play: Play) -> list[Found]:
    seeds = range(length.seeds)
    before = _played(within, Candidate(within.over), length.steps, seeds, play)
    least = LEAST_RATIO * fmean(report.tokens for report in before.reports) if before else 0.0
    played = [_played(within, one.candidate, length.steps, seeds, play) for one in found]
    kept = [one for one in played if one is not None and _trains_as_much(one.reports, least)]
    return sorted(kept, key=lambda one: one.step_s)


def _played(within: Space, candidate: Candidate, steps: int, seeds: range, play: Play) -> Found | None:
    made = [one for seed in seeds if (one := within.made(candidate, steps, seed)) is not None]
    reports = [report for report in play(made) if report is not None]
    return Found(candidate, made[0], tuple(reports)) if made and len(reports) == len(seeds) else None


def _trains_as_much(reports: tuple[Report, ...], least: float) -> bool:
    ratio = min(report.length_ratio for report in reports)
    return ratio >= LEAST_RATIO and fmean(report.tokens for report in reports) >= least
