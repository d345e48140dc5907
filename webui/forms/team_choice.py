"""New run for a team: what the templates it fits to begin with when it plays them."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.problems import Problem, SpecProblems
from flexmarl.contracts.resolve import layered, resolve
from flexmarl.controlplane.agents.naming import defined
from flexmarl.controlplane.common.problems import ValidationProblem


def fits(team: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Say whether a template's environment takes the team: its graph, or without one exactly its seats."""
    if team["settings"].get("graph") is not None:
        return "graph" in spec["environment"]
    return set(spec["agents"]) == set(team["settings"]["agents"])


def with_team(base: Mapping[str, Any], team: Mapping[str, Any], project: str) -> dict[str, Any]:
    """Return what New run begins with, played by a version of a team of a project. Raises ValidationProblem."""
    settings, spec = team["settings"], base["spec"]
    rest = {name: value for name, value in spec.items() if name not in {"agents", "policies"}}
    environment = dict(rest["environment"])
    if settings.get("graph") is not None:
        environment["graph"] = settings["graph"]
    named = {
        "team": {"name": team["name"], "version": team["number"]},
        "agents": {role: _whole(defined(project, role, agent), agent) for role, agent in settings["agents"].items()},
        "policies": settings.get("policies", {}),
        "environment": environment,
    }
    title = f"{base['title']}, {team['name']} v{team['number']}"
    description = f"{base['description']} Played by the team {team['name']}, version {team['number']}."
    try:
        return {**base, "title": title, "description": description, "spec": resolve(layered(rest, named)).document}
    except SpecProblems as refused:
        first = refused.problems[0]
        text = f"The template {base['title']} does not go with the team: {first.detail} {first.hint}".strip()
        raise ValidationProblem(text) from refused


def _whole(found: dict[str, Any] | Problem | None, agent: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an agent with the settings of its definition; what is wrong with it the plan says."""
    return agent if found is None or isinstance(found, Problem) else found
