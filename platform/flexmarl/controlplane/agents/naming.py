"""Which versions of agents and teams a specification names, and what it gets from them."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.resolve import layered
from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.controlplane.agents.models import AgentDefinition, AgentVersion, TeamDefinition, TeamVersion
from flexmarl.controlplane.agents.versions import SHOWN, reference_in, without_version


def defined(project: str, role: str, agent: object) -> dict[str, Any] | Problem | None:
    """Return an agent of a specification with the settings of the version that it names, or the refusal.

    None: it names none, or so badly that the types refuse it. `project` is the run's, whose definitions it may name.
    """
    named = reference_in(agent, "definition")
    if named is None:
        return None
    assert isinstance(agent, Mapping)
    name, number = named
    where = f"/agents/{role}/definition"
    rows = AgentVersion.objects.filter(agent__project_id=project, agent__role=name).order_by("-number")
    found = rows.first() if number is None else rows.filter(number=number).first()
    if found is not None:
        return {**layered(found.settings, agent), "definition": {"name": name, "version": found.number}}
    known = AgentDefinition.objects.filter(project_id=project, versions__number=1).order_by("role")
    return without_version(where, name, number, rows) or Problem(
        pointer=f"{where}/name",
        code="unknown_agent",
        detail=f"There is no agent definition {name} in {project}.",
        hint=_instead(name, list(known.values_list("role", flat=True)), "agents"),
    )


def with_team(project: str, raw: Mapping[str, Any]) -> dict[str, Any] | Problem | None:
    """Return a specification with what the team that it names is, under what is written beside it, or the refusal.

    None: it names none, or so badly that the types refuse it. `project` is the run's, whose teams it may name.
    """
    named = reference_in(raw, "team")
    if named is None:
        return None
    name, number = named
    rows = TeamVersion.objects.filter(team__project_id=project, team__name=name).order_by("-number")
    found = rows.first() if number is None else rows.filter(number=number).first()
    if found is None:
        known = list(TeamDefinition.objects.filter(project_id=project).order_by("name").values_list("name", flat=True))
        return without_version("/team", name, number, rows) or Problem(
            pointer="/team/name",
            code="unknown_team",
            detail=f"There is no team {name} in {project}.",
            hint=_instead(name, known, "teams"),
        )
    team = {part: found.settings.get(part, {}) for part in ("agents", "policies")}
    written, environment = dict(raw), raw.get("environment", {})
    if isinstance(environment, str):
        written["environment"] = environment = {"type": environment}
    if (graph := found.settings.get("graph")) is not None:
        kind = environment.get("type") if isinstance(environment, Mapping) else None
        if isinstance(kind, str) and (problem := _takes_no_graph(kind)) is not None:
            return problem
        team["environment"] = {"graph": graph}
    return {**layered(team, written), "team": {"name": name, "version": found.number}}


def _takes_no_graph(environment: str) -> Problem | None:
    """Refuse a team with a graph in an environment that says itself who speaks when."""
    fit = [name for name, options in ENVIRONMENT.variants().items() if "graph" in options.model_fields]
    if environment in fit or environment not in ENVIRONMENT.variants():
        return None
    return Problem(
        pointer="/team/name",
        code="incompatible",
        detail=f"The team has a graph, and {environment} says itself who speaks when.",
        hint=f"Use an environment that takes a graph: {', '.join(fit)}; or a team without one.",
    )


def _instead(name: str, known: Sequence[str], page: str) -> str:
    """Return what could have been meant."""
    if close := nearest(name, known):
        return f"Did you mean {close}?"
    text = ", ".join(known[:SHOWN])
    return f"Defined: {text}." if text else f"None is defined yet; save one on the page of {page}."
