"""Candidates of a search: a preset and what is changed of it, and the space of those that may be played.

Invariants: a candidate is settings that a user could give; what rules refuse, what exceeds the lag bound, and what has
other devices, or devices with more room, is none.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import layered
from flexmarl.simulator.reporting.report import SimulationReport
from flexmarl.simulator.scenarios import chance
from flexmarl.simulator.scenarios.library import compose
from flexmarl.simulator.scenarios.scenario import Scenario
from flexmarl.simulator.search.axes import LAYOUT, NARROW, SearchAxis, axes, balanced, devices, laid
from flexmarl.simulator.search.bounds import StepDemand, asks


@dataclass(frozen=True, slots=True)
class Candidate:
    preset: str
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """Path of an axis -> value."""

    @property
    def changes(self) -> dict[str, Any]:
        """Return what is laid over the workload and the preset."""
        return layered(*(laid(path, value) for path, value in self.chosen.items()))

    def beside(self, steps: "Iterable[SearchStep]") -> "Candidate":
        """Return the candidate that is these steps away."""
        return Candidate(self.preset, {**self.chosen, **{step.path: step.value for step in steps}})


@dataclass(frozen=True, slots=True)
class FoundCandidate:
    candidate: Candidate
    scenario: Scenario
    """Of its first seed."""
    reports: tuple[SimulationReport, ...]
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


class SearchStep(NamedTuple):
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
class SearchSpace:
    """What may be chosen. `scenario` is a document as workloads have it, `bound` the highest lag bound, `over` the
    preset that is searched against."""

    scenario: Mapping[str, Any]
    over: str
    presets: tuple[str, ...]
    bound: int
    axes: tuple[SearchAxis, ...]
    work: StepDemand
    devices: int
    room: Mapping[str, Any]
    """How many policies a device holds, whatever presets say: more room is no mechanism."""

    def made(self, candidate: Candidate, steps: int | None = None, seed: int = 0) -> Scenario | None:
        """Return the scenario of a candidate, None where it is none.

        The steps that begin before the first weights are too old for the next rows warm it up; a trial is as many more.
        """
        length = {"steps": steps or 1 + self.bound, "warm_up": 1 + self.bound, "seed": seed}
        made = self._composed(candidate, length)
        if made is None:
            return None
        rules = [made.spec.lag_policy_of(name) for name in made.spec.trainable_policies()]
        bounded = all(own.bound <= self.bound and own.at_cut != "train" for own in rules)
        return made if bounded and devices(made.spec) == self.devices else None

    def _composed(self, candidate: Candidate, length: Mapping[str, Any]) -> Scenario | None:
        """Compose a candidate without the settings that the types it has do not know: they make no difference."""
        try:
            return compose(self.scenario, candidate.preset, layered(self.room, candidate.changes, length))
        except SpecProblems as refused:
            unknown = {problem.pointer for problem in refused.problems if problem.code == "not_read"}
        known = {path: value for path, value in candidate.chosen.items() if f"/spec{_pointer(path)}" not in unknown}
        return None if len(known) == len(candidate.chosen) else self._composed(replace(candidate, chosen=known), length)

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

    def near(self, found: FoundCandidate, stride: float = NARROW) -> Iterator[SearchStep]:
        """List what is one step away from a candidate."""
        own = found.candidate
        for axis in self.axes:
            if not is_read(found.scenario, axis.path):
                continue
            for called, value in axis.near(found.scenario.spec, stride).items():
                one = Candidate(own.preset, {**own.chosen, axis.path: value})
                yield SearchStep(axis.path, called, value, one, axis.ordered)

    def _plain(self, preset: str) -> Scenario | None:
        try:
            return compose(self.scenario, preset, self.room)
        except SpecProblems:
            return None

    def _balanced(self, plain: Scenario) -> dict[str, Any]:
        return balanced(plain.spec, self.devices, self.work.trained, self.work.engines)


def space(document: Mapping[str, Any], over: str, presets: Iterable[str], bound: int) -> SearchSpace:
    """Return what is searched: all slots, their numbers, and every split of the devices that the document states."""
    before = compose(document, over)
    work, many = asks(before), devices(before.spec)
    own = axes(before.spec, many, work.trained, bound)
    room = before.spec.resources.model_dump(include={"engine_policies", "trainer_policies"})
    return SearchSpace(document, over, tuple(presets), bound, tuple(own), work, many, {"spec": {"resources": room}})


def is_read(scenario: Scenario, path: str) -> bool:
    """Tell whether the types that a scenario has know a setting."""
    here: Any = scenario.spec
    for name in path.split(".") if path != LAYOUT else ():
        if not hasattr(here, name):
            return False
        here = getattr(here, name)
    return True


def _pointer(path: str) -> str:
    return "/" + path.replace(".", "/")
