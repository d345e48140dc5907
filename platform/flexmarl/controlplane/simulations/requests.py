"""What is asked of a comparison: a workload, presets, seeds, changes. Checked whole before it waits.

Invariant: what a `Comparison` says was accepted by the rules of a specification for every preset it names.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import ConfigDict, Field

from flexmarl.contracts import yaml_text
from flexmarl.contracts.base import Strict
from flexmarl.contracts.problems import Problem, SpecProblems
from flexmarl.contracts.resolve import layered, load_presets
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.simulator import Scenario
from flexmarl.simulator.scenarios.library import compose

MOST_STEPS, MOST_SEEDS, MOST_PLAYED, MOST_CHANGES = 200, 20, 200, 50
"""`MOST_PLAYED`: presets times seeds."""


class RefusedPreset(Strict):
    """A preset that cannot be simulated so, and every reason."""

    preset: str
    problems: tuple[Problem, ...]


class Comparison(Strict):
    model_config = ConfigDict(frozen=True)

    workload: str = ""
    run: str = ""
    """Key of the run whose recorded load is played instead of a built-in workload."""
    presets: tuple[str, ...] = Field(min_length=1)
    steps: int = Field(default=8, ge=1, le=MOST_STEPS)
    warm_up: int = Field(default=1, ge=0, le=MOST_STEPS)
    seeds: int = Field(default=1, ge=1, le=MOST_SEEDS)
    changes: dict[str, Any] = {}
    """Dotted path -> value."""
    refused: tuple[RefusedPreset, ...] = ()
    """Presets that were asked for and left out."""

    def scenario(self, preset: str, seed: int, workload: str | Mapping[str, Any] = "") -> Scenario:
        """Return what is played for one preset and seed. Raises SpecProblems."""
        return compose(workload or self.workload, preset, self._changes() | {"seed": seed})

    def _changes(self) -> dict[str, Any]:
        own = {"steps": self.steps, "warm_up": self.warm_up}
        return layered(own, *(nested(path, value) for path, value in self.changes.items()))


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return `{"a": {"b": value}}` for `a.b`."""
    made = value
    for name in reversed(path.split(".")):
        made = {name: made}
    return dict(made)


def read_changes(lines: Iterable[str]) -> dict[str, Any]:
    """Read changes as people write them, `PATH=VALUE` with a YAML value. Raises ValidationProblem by their number."""
    found: dict[str, Any] = {}
    for number, line in enumerate(lines):
        path, _, text = line.partition("=")
        path = path.strip()
        try:
            value = yaml_text.load(text)
        except yaml.YAMLError:
            value = None
        if not path or not text.strip() or value is None or not all(path.split(".")):
            detail = f"{line[:80]!r} is not of the form PATH=VALUE."
            hint = "Write it like spec.batch.tasks_per_step=32."
            raise ValidationProblem(detail, errors=[FieldError(f"/changes/{number}", "invalid", detail, hint)])
        if path.split(".")[0] not in ("spec", "machine", "workload"):
            detail = f"{path} cannot be changed here."
            hint = "Paths begin with spec., machine. or workload.; steps and seeds are set separately."
            raise ValidationProblem(detail, errors=[FieldError(f"/changes/{number}", "unknown_field", detail, hint)])
        found[path] = value
    return found


def checked(wish: Comparison, workload: str | Mapping[str, Any] = "", *, leave_out: bool = False) -> Comparison:
    """Return what will be played. Raises ValidationProblem with what is wrong, by preset.

    With `leave_out`, presets that are refused are left out, as long as one is left.
    """
    if len(wish.presets) * wish.seeds > MOST_PLAYED:
        detail = f"{len(wish.presets)} presets times {wish.seeds} seeds are more than {MOST_PLAYED}."
        hint = f"Set {max(1, MOST_PLAYED // len(wish.presets))} seeds, or fewer presets."
        raise ValidationProblem(detail, errors=[FieldError("/seeds", "out_of_range", detail, hint)])
    refused = []
    for preset in wish.presets:
        try:
            wish.scenario(preset, 0, workload)
        except SpecProblems as problems:
            refused.append(RefusedPreset(preset=preset, problems=problems.problems))
    if refused and (not leave_out or len(refused) == len(wish.presets)):
        raise _refusal(wish, refused)
    left_out = {one.preset for one in refused}
    kept = tuple(preset for preset in wish.presets if preset not in left_out)
    return wish.model_copy(update={"presets": kept, "refused": tuple(refused)})


def _refusal(wish: Comparison, refused: list[RefusedPreset]) -> ValidationProblem:
    """Tell each refusal once: a wrong change is wrong under every preset."""
    errors: dict[tuple[str, str], FieldError] = {}
    for one in refused:
        for problem in one.problems:
            place = {"/workload": "/workload", "/preset": f"/presets/{wish.presets.index(one.preset)}"}
            pointer = place.get(problem.pointer, problem.pointer)
            known = errors.get((problem.pointer, problem.detail))
            detail = f"{one.preset}: {problem.detail}" if problem.pointer not in place else problem.detail
            if known is None:
                location = "body" if problem.pointer in place else "scenario"
                errors[problem.pointer, problem.detail] = FieldError(
                    pointer, problem.code, detail, problem.hint, location
                )
    return ValidationProblem(next(iter(errors.values())).detail, errors=list(errors.values()))


def every_preset() -> tuple[str, ...]:
    """Return the names of all built-in presets."""
    return tuple(load_presets())
