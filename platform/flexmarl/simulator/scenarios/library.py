"""Workloads by name, and how a workload and a preset make a scenario.

A workload brings the team, its load and the machines; a preset brings the mechanisms and lies
over it; changes lie on top.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import ValidationError

from flexmarl.contracts.problems import Problem, SpecProblems, nearest, problems_of
from flexmarl.contracts.resolve import layered, load_presets
from flexmarl.contracts.rules import broken_rules
from flexmarl.simulator.scenarios.scenario import Scenario, scenario

_PLAYED = ("/agents", "/environment", "/policies")
"""What rules say of these is about environments that are really played."""


@dataclass(frozen=True, slots=True)
class NamedWorkload:
    name: str
    title: str
    description: str
    source: str
    """Where its figures come from, and what is fitted."""
    scenario: dict[str, Any]


@cache
def load_workloads() -> dict[str, NamedWorkload]:
    """Read the built-in workloads, by name."""
    folder = resources.files("flexmarl.simulator").joinpath("workloads")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {
        name: NamedWorkload(name=name, **yaml.safe_load(f.read_text(encoding="utf-8")))
        for f in files
        for name in [f.name.removesuffix(".yaml")]
    }


def compose(workload: str | Mapping[str, Any], preset: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """Make a scenario of a workload (a name, or a document like `NamedWorkload.scenario`) and a preset.

    `changes` is laid over both, e.g. `{"steps": 16, "spec": {"batch": {...}}}`. Raises SpecProblems with every refusal.
    """
    own = workload if isinstance(workload, Mapping) else _known(load_workloads(), workload, "/workload").scenario
    base = dict(own)
    mechanisms = _known(load_presets(), preset, "/preset").spec
    document = layered({"workload": {}}, base, {"spec": mechanisms}, changes or {})
    try:
        made = scenario(document)
    except ValidationError as error:
        raise SpecProblems(problems_of(error, Scenario, document)) from error
    refused = [
        p.model_copy(update={"pointer": f"/spec{p.pointer}"})
        for p in broken_rules(made.spec)
        if not p.pointer.startswith(_PLAYED)
    ]
    if refused:
        raise SpecProblems(refused)
    return made


def _known(library: Mapping[str, Any], name: object, where: str) -> Any:
    if not isinstance(name, str):
        hint = f"Known: {', '.join(library)}."
        raise SpecProblems([Problem(pointer=where, code="wrong_type", detail=f"{name!r} is not a name.", hint=hint)])
    if name in library:
        return library[name]
    close = nearest(name, library)
    hint = f"Did you mean {close}?" if close else f"Known: {', '.join(library)}."
    raise SpecProblems([Problem(pointer=where, code="unknown_value", detail=f"{name} does not exist.", hint=hint)])
