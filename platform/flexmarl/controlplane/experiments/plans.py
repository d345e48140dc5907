"""From what somebody sent to a complete specification and what it means: sizes, warnings, devices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Protocol

from flexmarl.contracts.arithmetic import arithmetic
from flexmarl.contracts.availability import models_not_installed, not_installed
from flexmarl.contracts.problems import Problem, SpecProblems
from flexmarl.contracts.resolve import Resolved, parse_yaml, resolve
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.experiments import choices, plan_tokens, predictions
from flexmarl.controlplane.experiments.capacity import too_large
from flexmarl.controlplane.experiments.folders import refused_folders, unseen_folders
from flexmarl.controlplane.experiments.forecaster import PredictionFailed
from flexmarl.controlplane.experiments.generators import refused_generators
from flexmarl.controlplane.experiments.hosts import unhostable
from flexmarl.controlplane.experiments.models import StoredPlan
from flexmarl.controlplane.experiments.pools import in_pools_of
from flexmarl.controlplane.experiments.sharing import refused_sharing
from flexmarl.simulator.choosing.objectives import DeviceObjective

BESIDE = (
    "template",
    "preset",
    "project",
    "start",
    "experiment",
    "tags",
    "notes",
    "priority",
    "overrides",
    "spec",
    "yaml",
)
"""Members of a request that stand beside its specification, never in it."""
SPEC = "spec"
"""Location of errors whose pointer goes into the specification."""


class CheckpointLookup(Protocol):
    """Checkpoints that a specification may begin with, as far as whoever submits it may read them."""

    def completed(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return a document that says what its checkpoints are of. Raises SpecProblems."""

    def refusals(self, spec: ExperimentSpec) -> Iterable[Problem]:
        """Return what does not fit the checkpoints that are named."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A specification as a form, a script or a file gives it: `spec` or `yaml` or neither, on top of a template."""

    name: str = ""
    template: str = ""
    preset: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    yaml: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Partial specification laid over the rest."""
    project: str = ""
    """Whose pools it may use, and whose default pool it takes; empty: not known yet."""
    checkpoints: CheckpointLookup | None = None
    """None: nobody submits it, and it may name none."""


def resolve_draft(draft: Draft) -> Resolved:
    """Complete a draft. Raises SpecProblems with every refusal."""
    if draft.spec and draft.yaml:
        raise SpecProblems([Problem(pointer="", code="ambiguous", detail="Send spec or yaml, not both.")])
    if not (draft.spec or draft.yaml or draft.template):
        hint = "See /api/v1/templates."
        raise SpecProblems([Problem(pointer="", code="required", detail="Send template, spec or yaml.", hint=hint)])
    raw = overlay(parse_yaml(draft.yaml) if draft.yaml else dict(draft.spec), draft.overrides)
    if misplaced := [_misplaced(name) for name in BESIDE if name in raw]:
        raise SpecProblems(misplaced)
    if draft.name:
        raw["name"] = draft.name
    if draft.checkpoints is not None:
        raw = draft.checkpoints.completed(raw)
    found = resolve(raw, preset=draft.preset or None, template=draft.template or None)
    if refused := _refusals(draft, found.spec):
        raise SpecProblems(refused)
    if draft.project:
        found = in_pools_of(draft.project, found, lambda more: resolve(overlay(raw, more), **_basis(draft)))
    if missing := list(unhostable(found.spec, draft.project)) or list(too_large(found.spec)):
        raise SpecProblems(missing)
    return found


def _misplaced(name: str) -> Problem:
    detail = f"{name} is no field of a specification; it stands beside it."
    hint = f'Remove it here; say it in the body of the request, beside spec or yaml ("{name}": ...), or in the form.'
    return Problem(pointer=f"/{name}", code="unknown_field", detail=detail, hint=hint)


def _version_of(distribution: str) -> str:
    """Return the version of an installed distribution, empty where there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _refusals(draft: Draft, spec: ExperimentSpec) -> list[Problem]:
    """Return what this installation does not let a legal specification have: the first kind of it."""
    return (
        refused_folders(spec)
        or list(draft.checkpoints.refusals(spec) if draft.checkpoints is not None else ())
        or not_installed(spec.environment.type, lambda module: find_spec(module) is not None)
        or models_not_installed(spec, _version_of)
        or refused_generators(spec)
        or refused_sharing(spec, draft.project)
    )


def _basis(draft: Draft) -> dict[str, str | None]:
    return {"preset": draft.preset or None, "template": draft.template or None}


def required(draft: Draft) -> Resolved:
    """Complete a draft that must be right. Raises ValidationProblem with pointers into the specification."""
    try:
        return resolve_draft(draft)
    except SpecProblems as refused:
        errors = [as_field_error(problem) for problem in refused.problems]
        raise ValidationProblem("The specification is refused: " + errors[0].detail, errors=errors) from refused


@dataclass(frozen=True, slots=True)
class ChosenFrom:
    """What to choose devices by, and from: pools by name, all where none is named; free devices, or all that work."""

    wish: DeviceObjective
    pools: tuple[str, ...] = ()
    free: bool = False


def plan(draft: Draft, predict: bool = False, choose: ChosenFrom | None = None) -> dict[str, Any]:
    """Say what a draft would become, and what it would take, or on which devices, where that is asked for.

    A wrong one is an answer too: with errors, and without a specification. Raises PredictionSlow; ValidationProblem
    where no devices can be chosen.
    """
    try:
        found = resolve_draft(draft)
    except SpecProblems as refused:
        errors = [as_field_error(problem).as_dict() for problem in refused.problems]
        return {
            "spec": None, "sources": {}, "preset": draft.preset, "template": draft.template, "arithmetic": None,
            "errors": errors, "warnings": [], "devices": None, "prediction": None, "choice": None, "plan_token": None,
        }  # fmt: skip
    fit = plan_tokens.devices(found)
    stored, said = _predicted(found, draft.project) if predict else (None, [])
    warnings = (*found.warnings, *unseen_folders(found.spec), *said)
    return {
        "spec": found.document,
        "sources": found.sources,
        "preset": found.preset,
        "template": found.template,
        "arithmetic": arithmetic(found.spec).model_dump(mode="json"),
        "errors": [],
        "warnings": [as_field_error(problem).as_dict() for problem in warnings],
        "devices": fit,
        "prediction": None if stored is None else predictions.plan_row(stored),
        "choice": None if choose is None else _choice(draft, found.spec, choose),
        "plan_token": plan_tokens.token_of(found, fit, stored),
    }


def _choice(draft: Draft, spec: ExperimentSpec, asked: ChosenFrom) -> dict[str, Any]:
    """Choose devices for a draft that is right."""

    def resolves(patch: Mapping[str, Any]) -> bool:
        try:
            resolve_draft(replace(draft, overrides=overlay(draft.overrides, patch)))
        except SpecProblems:
            return False
        return True

    return choices.choose(spec, draft.project, asked.wish, asked.pools, asked.free, resolves)


def _predicted(found: Resolved, project: str) -> tuple[StoredPlan | None, list[Problem]]:
    """Predict a run, and warn; where nothing can be said the plan is one without a prediction."""
    try:
        stored = predictions.predict(found.spec, project)
    except PredictionFailed as failed:
        hint = "The rest of the plan is valid."
        return None, [Problem(pointer="", code="prediction_failed", detail=str(failed), hint=hint)]
    return stored, predictions.warnings(stored)


def overlay(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one partial document over another, member by member."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = overlay(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def as_field_error(problem: Problem) -> FieldError:
    """Turn a problem of the contracts into an entry of the API's."""
    return FieldError(problem.pointer, problem.code, problem.detail, problem.hint, SPEC)
