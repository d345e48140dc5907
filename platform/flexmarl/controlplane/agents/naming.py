"""Which version of an agent definition a specification names, and the settings that the agent gets from it."""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.resolve import layered
from flexmarl.controlplane.agents.models import AgentDefinition, AgentVersion

SHOWN = 10
MOST = 2**31
"""Numbers of versions are below it."""


def defined(project: str, role: str, agent: object) -> dict[str, Any] | Problem | None:
    """Return an agent of a specification with the settings of the version that it names, or the refusal.

    None: it names none, or so badly that the types refuse it. `project` is the run's, whose definitions it may name.
    """
    named = agent.get("definition") if isinstance(agent, Mapping) else None
    if not isinstance(agent, Mapping) or not isinstance(named, Mapping):
        return None
    name, number = named.get("name"), named.get("version")
    whole = number is None or (isinstance(number, int) and not isinstance(number, bool) and 0 < number < MOST)
    if not whole or not isinstance(name, str) or "\0" in name or set(named) - {"name", "version"}:
        return None
    where = f"/agents/{role}/definition"
    rows = AgentVersion.objects.filter(agent__project_id=project, agent__role=name).order_by("-number")
    found = rows.first() if number is None else rows.filter(number=number).first()
    if found is not None:
        return {**layered(found.settings, agent), "definition": {"name": name, "version": found.number}}
    numbers = ", ".join(map(str, rows.values_list("number", flat=True)[:SHOWN]))
    if numbers:
        detail = f"{name} has no version {number}."
        return Problem(pointer=f"{where}/version", code="unknown_version", detail=detail, hint=f"It has {numbers}.")
    return Problem(
        pointer=f"{where}/name",
        code="unknown_agent",
        detail=f"There is no agent definition {name} in {project}.",
        hint=_instead(project, name),
    )


def _instead(project: str, name: str) -> str:
    """Return what could have been meant."""
    defined_ones = AgentDefinition.objects.filter(project_id=project, versions__number=1)
    names = list(defined_ones.order_by("role").values_list("role", flat=True))
    if close := nearest(name, names):
        return f"Did you mean {close}?"
    known = ", ".join(names[:SHOWN])
    return f"Defined: {known}." if known else "None is defined yet; save one on the page of agents."
