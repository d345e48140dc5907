"""Changes of agents and teams: roles get their hue at first use, and definitions their versions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connection, transaction

from flexmarl.contracts.specification.instructions import render_instructions
from flexmarl.contracts.specification.team import AgentSettings
from flexmarl.contracts.specification.team_settings import TeamSettings
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.agents import queries, versions
from flexmarl.controlplane.agents.models import AgentDefinition, AgentVersion, TeamDefinition, TeamVersion
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope

_LOCK = 0x48554553  # advisory lock number: two first uses must not draw the same hue


@transaction.atomic
def ensure_roles(project: str, roles: Iterable[str]) -> None:
    """Enter roles that the project has not used before, each with the hue used least so far."""
    wanted = list(dict.fromkeys(roles))
    known = set(AgentDefinition.objects.filter(project_id=project, role__in=wanted).values_list("role", flat=True))
    if known.issuperset(wanted):
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    hues = dict(AgentDefinition.objects.filter(project_id=project).values_list("role", "hue"))
    for role in wanted:
        if role not in hues:
            hues[role] = queries.next_hue(hues.values())
            AgentDefinition.objects.create(project_id=project, role=role, hue=hues[role])


@transaction.atomic
def save_agent(
    actor: Actor,
    *,
    name: str,
    settings: Mapping[str, Any],
    project: str = DEFAULT_PROJECT,
    description: str | None = None,
    note: str = "",
    based_on: int | None = None,
) -> AgentVersion:
    """Save settings as the next version of an agent; a name that is new is defined by it.

    `based_on` is the version that was edited. Raises Conflict when somebody else saved one meanwhile, and
    ValidationProblem.
    """
    actor.require(Scope.RUNS_WRITE, project)
    versions.in_project(project)
    kept = versions.checked(AgentSettings, settings)
    ensure_roles(project, [name])
    agent = AgentDefinition.objects.select_for_update().get(project_id=project, role=name)
    rows = queries.versions(agent)
    return versions.add(agent, rows, actor=actor, settings=kept, note=note, description=description, based_on=based_on)


@transaction.atomic
def save_team(
    actor: Actor,
    *,
    name: str,
    settings: Mapping[str, Any],
    project: str = DEFAULT_PROJECT,
    description: str | None = None,
    note: str = "",
    based_on: int | None = None,
) -> TeamVersion:
    """Save settings as the next version of a team; a name that is new is defined by it.

    `based_on` is the version that was edited. Raises Conflict when somebody else saved one meanwhile, and
    ValidationProblem.
    """
    actor.require(Scope.RUNS_WRITE, project)
    versions.in_project(project)
    kept = versions.checked(TeamSettings, settings)
    TeamDefinition.objects.bulk_create([TeamDefinition(project_id=project, name=name)], ignore_conflicts=True)
    team = TeamDefinition.objects.select_for_update().get(project_id=project, name=name)
    rows = queries.team_versions(team)
    return versions.add(team, rows, actor=actor, settings=kept, note=note, description=description, based_on=based_on)


def preview(instructions: str, role: str, team: Sequence[str], environment: str) -> str:
    """Return what a seat is told; without instructions it is what the environment says. Raises ValidationProblem."""
    try:
        return render_instructions(instructions, role, team, environment) if instructions else environment
    except ValueError as error:
        text = str(error)
        raise ValidationProblem(text, errors=[FieldError("/instructions", "invalid", text)]) from error
