"""A search over the mechanism space: the least time per step of one workload, at equal devices, tasks and groups.

Candidates are settings that a user could give: a preset, and changes of mechanism slots, of their numbers, and of how a
fixed number of devices is split. Trials get longer from round to round, and fewer. Invariants: equal budgets and seeds
find equal settings; what rules refuse, what exceeds the lag bound, and what trains shorter replies than it makes is no
candidate, and neither is what trains less per step than the preset that is searched against.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flexmarl.contracts.problems import SpecProblems
from flexmarl.contracts.resolve import layered
from flexmarl.simulator import chance
from flexmarl.simulator.library import compose
from flexmarl.simulator.report import Report
from flexmarl.simulator.scenario import Scenario

LEAST_RATIO = 0.98
"""Least mean length of trained rows over that of generated ones, and least share of the tokens per step of the preset
that is searched against."""
ROUNDS = (1, 2, 4)
"""Train steps of a trial, round by round; a third of the candidates reaches the next one."""
_MECHANISMS = "spec.mechanisms."

Values = tuple[Any, ...]
Play = Callable[[list[Scenario]], list[Report | None]]
"""Simulates scenarios, in any order and at the same time; None for one that came to no end."""


@dataclass(frozen=True, slots=True)
class Candidate:
    preset: str
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """Dotted path -> value."""

    @property
    def changes(self) -> dict[str, Any]:
        """Return what is laid over the workload and the preset."""
        return layered(*(_at(path, value) for path, value in self.chosen.items()))


@dataclass(frozen=True, slots=True)
class Found:
    candidate: Candidate
    scenario: Scenario
    report: Report


@dataclass(frozen=True, slots=True)
class Space:
    """What may be chosen. `scenario` is a document as workloads have it, `bound` the highest lag bound, `over` the
    preset that is searched against."""

    scenario: Mapping[str, Any]
    over: str
    presets: tuple[str, ...]
    bound: int
    axes: Mapping[str, Values]

    def made(self, candidate: Candidate, steps: int) -> Scenario | None:
        """Return the scenario of a candidate, None where it is none."""
        try:
            made = compose(self.scenario, candidate.preset, layered(candidate.changes, {"steps": steps}))
        except SpecProblems:
            return None
        rules = [made.spec.lag_policy_of(name) for name in made.spec.trainable_policies()]
        return made if all(own.bound <= self.bound and own.at_cut != "train" for own in rules) else None

    def first(self) -> list[Candidate]:
        """List the presets as they are."""
        return [Candidate(name) for name in self.presets]

    def drawn(self, key: int) -> Candidate:
        """Return the candidate that belongs to a key: a preset and a few choices, or many."""
        preset = self.presets[_below(chance.mixed(key, 0), len(self.presets))]
        share = chance.uniform(key, 1)
        chosen = {path: self._value(path, key, n) for n, path in enumerate(self.axes) if _often(key, n, share)}
        return Candidate(preset, chosen)

    def near(self, candidate: Candidate, key: int) -> Candidate:
        """Return a candidate that differs from another by one to three choices."""
        paths, chosen = list(self.axes), dict(candidate.chosen)
        for change in range(1 + _below(chance.mixed(key, 2), 3)):
            path = paths[_below(chance.mixed(key, 10 + change), len(paths))]
            chosen[path] = self._value(path, key, 100 + change)
        return Candidate(candidate.preset, chosen)

    def _value(self, path: str, key: int, number: int) -> Any:
        values = self.axes[path]
        return values[_below(chance.mixed(chance.mixed(key, 3), number), len(values))]


def space(document: Mapping[str, Any], over: str, presets: Iterable[str], bound: int) -> Space:
    """Return what is searched: all slots, their numbers, and every split of the devices that the document states."""
    resources, tasks = document["spec"]["resources"], document["spec"]["batch"]["tasks_per_step"]
    devices = resources["rollout_devices"] + resources["training_devices"]
    policies = sorted(
        {own.get("policy") or role for role, own in document["spec"]["agents"].items() if own.get("trainable", True)}
    )
    own = {
        "split": tuple({"rollout_devices": devices - part, "training_devices": part} for part in _parts(devices)),
        "spec.policies": tuple(
            {name: {"devices": {"least": 1, "most": most}} for name in policies} for most in (1, 2, 4, 8)
        ),
        "spec.batch.micro_batch_groups": tuple(size for size in (1, 2, 4, 8, 16, 32) if size <= tasks),
        "spec.batch.rollout_groups": tuple(size for size in (1, 4) if size <= tasks),
    }
    lags = tuple({"bound": lag, "at_admission": take} for lag in range(1, bound + 1) for take in ("admit", "wait"))
    mechanisms = {
        "parallel": tuple({"episodes": most, "members": None} for most in (64, 128, 256, 512, None)),
        "mover": (
            {"type": "static"},
            *({"type": "demand", "delta": turns, "hold_s": s} for turns in (2, 5, 10) for s in (2, 5, 15)),
        ),
        "router": ("least_loaded", "length_aware", "version_aware"),
        "publication.type": ("cohort", "wavefront", *(("delayed",) if bound else ())),
        "trainer_protocol": ("micro_batch", "per_group", "batch"),
        "allocation": (*({"type": "agent_centric", "patience_s": s} for s in (2, 10, 60)), {"type": "static"}),
        "redundancy": ("none", *({"type": "extra_groups", "extra": n, "surplus": "join"} for n in (2, 4))),
        **({"lag_policy": lags, "lag_policy.in_flight": ("finish", "continue", "resume")} if bound else {}),
    }  # fmt: skip
    return Space(document, over, tuple(presets), bound, own | {_MECHANISMS + path: v for path, v in mechanisms.items()})


def search(within: Space, trials: int, seed: int, play: Play) -> list[Found]:
    """Return the best candidates of so many first trials, the best one first."""
    key, found = chance.mixed(0, seed), list[Found]()
    candidates, number = _usable(within, within.first()), 0
    half = len(candidates) + max(0, trials - len(candidates)) // 2
    while len(candidates) < half and number < 100 * trials:
        candidates.append(within.drawn(chance.mixed(key, number)))
        number += 1
        candidates = _usable(within, candidates)
    found = _played(within, candidates, ROUNDS[0], play)
    left = trials - len(found)
    while left > 0 and found and number < 200 * trials:
        near = [within.near(found[n % 4 % len(found)].candidate, chance.mixed(key, number + n)) for n in range(8)]
        number += len(near)
        fresh = [one for one in _usable(within, near) if one not in [before.candidate for before in found]][:left]
        left -= max(1, len(fresh))
        found = _best([*found, *_played(within, fresh, ROUNDS[0], play)])
    for steps in ROUNDS[1:]:
        kept = [one.candidate for one in found[: max(4, len(found) // 3)]]
        found = _played(within, kept, steps, play)
    return found


def _usable(within: Space, candidates: list[Candidate]) -> list[Candidate]:
    return [one for one in candidates if within.made(one, 1) is not None]


def _played(within: Space, candidates: list[Candidate], steps: int, play: Play) -> list[Found]:
    made = [(one, scenario) for one in candidates if (scenario := within.made(one, steps)) is not None]
    over = compose(within.scenario, within.over, {"steps": steps})
    before, *reports = play([over, *(scenario for _, scenario in made)])
    if before is None:
        return []
    found = [Found(*one, report) for one, report in zip(made, reports, strict=True) if report is not None]
    return _best([one for one in found if _trains_as_much(one.report, before)])


def _trains_as_much(report: Report, before: Report) -> bool:
    return report.length_ratio >= LEAST_RATIO and report.tokens >= LEAST_RATIO * before.tokens


def _best(found: list[Found]) -> list[Found]:
    return sorted(found, key=lambda one: one.report.step_s)


def _parts(devices: int) -> list[int]:
    return sorted({max(1, round(devices * tenths / 20)) for tenths in range(2, 13)})


def _often(key: int, number: int, share: float) -> bool:
    return chance.uniform(chance.mixed(key, 4), number) < share


def _below(key: int, many: int) -> int:
    return key % many


def _at(path: str, value: Any) -> dict[str, Any]:
    placed: Any = value
    for part in reversed(("spec.resources" if path == "split" else path).split(".")):
        placed = {part: placed}
    return dict(placed)
