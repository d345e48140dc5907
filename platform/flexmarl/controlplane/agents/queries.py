"""What others read of agents and teams: hues, monograms, the catalogues."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Max, QuerySet

from flexmarl.controlplane.agents.models import AgentDefinition, AgentVersion, TeamDefinition, TeamVersion
from flexmarl.controlplane.agents.models.definition import HUES
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339


def hues(project: str) -> dict[str, int]:
    """Map the roles of a project to their hues, 1 to 8."""
    return dict(AgentDefinition.objects.filter(project_id=project).values_list("role", "hue"))


def next_hue(used: Iterable[int]) -> int:
    """Return the hue for one role more: the first of those that fewest roles have."""
    counts = Counter(used)
    return min(range(1, HUES + 1), key=lambda hue: (counts[hue], hue))


def all_hues() -> dict[str, dict[str, int]]:
    """Map every project that has agents to the hues of its roles; one query."""
    found: dict[str, dict[str, int]] = {}
    for project, role, hue in AgentDefinition.objects.values_list("project__name", "role", "hue"):
        found.setdefault(project, {})[role] = hue
    return found


def monograms(roles: Sequence[str]) -> dict[str, str]:
    """Give each role of a run its mark: the first letter, two when letters collide, a digit for numbered roles."""
    marks: dict[str, str] = {}
    for role in roles:
        first = role[0].upper()
        alone = sum(other[0] == role[0] for other in roles) == 1
        marks[role] = first if alone else first + _second(role, roles)
    return marks


def _second(role: str, roles: Sequence[str]) -> str:
    """Return the first later letter that no colliding role has at the same place; the last one otherwise."""
    rivals = [other for other in roles if other != role and other[0] == role[0]]
    for index in range(1, len(role)):
        if role[index] != "_" and all(index >= len(other) or other[index] != role[index] for other in rivals):
            return role[index]
    return role[-1]


def catalogue(actor: Actor) -> QuerySet[AgentDefinition]:
    """The agents of all projects whose runs the caller may read, in the order of first use."""
    rows = AgentDefinition.objects.annotate(newest_number=Max("versions__number")).order_by("project_id", "id")
    return in_reach(rows, actor, Scope.RUNS_READ)


def find_agent(actor: Actor, agent_id: UUID) -> AgentDefinition:
    """Return an agent that the caller may read. Raises NotFound."""
    agent = catalogue(actor).filter(pk=agent_id).first()
    if agent is None:
        raise NotFound("There is no such agent.")
    return agent


def versions(agent: AgentDefinition) -> QuerySet[AgentVersion]:
    """Return the versions of an agent, the newest first."""
    return AgentVersion.objects.filter(agent=agent).select_related("agent").order_by("-number")


def newest_of(agent: AgentDefinition) -> int | None:
    """Return the number of the newest version of an agent of the catalogue."""
    number: int | None = agent.newest_number  # type: ignore[attr-defined] # annotated by catalogue
    return number


def newest_of_project(actor: Actor, project: str, most: int) -> dict[str, int]:
    """Map the defined agents of a project to the numbers of their newest versions, by name; at most so many."""
    rows = catalogue(actor).filter(project_id=project, versions__number=1).order_by("role")[:most]
    return {one.role: number for one in rows if (number := newest_of(one)) is not None}


def agent_row(agent: AgentDefinition) -> dict[str, Any]:
    """Return an agent as a plain value."""
    return {
        "id": str(agent.id),
        "project": agent.project_id,
        "role": agent.role,
        "hue": agent.hue,
        "description": agent.description,
        "newest": newest_of(agent),
        "created_at": rfc3339(agent.created_at),
        "updated_at": rfc3339(agent.updated_at),
        "version": agent.version,
        "url": f"/api/v1/agents/{agent.id}",
        "web_url": f"/agents/{agent.id}",
    }


def agent_detail(agent: AgentDefinition) -> dict[str, Any]:
    """Return an agent with the settings of its newest version."""
    last = versions(agent).first()
    return {**agent_row(agent), "settings": {} if last is None else last.settings}


def version_row(made: AgentVersion) -> dict[str, Any]:
    """Return a version of an agent as a plain value."""
    return {
        "agent": str(made.agent_id),
        "role": made.agent.role,
        "number": made.number,
        "settings": made.settings,
        "note": made.note,
        "author": made.author,
        "created_at": rfc3339(made.created_at),
        "url": f"/api/v1/agents/{made.agent_id}/versions/{made.number}",
    }


def teams(actor: Actor) -> QuerySet[TeamDefinition]:
    """The teams of all projects whose runs the caller may read, by name."""
    rows = TeamDefinition.objects.annotate(newest_number=Max("versions__number")).order_by("project_id", "name")
    return in_reach(rows, actor, Scope.RUNS_READ)


def find_team(actor: Actor, team_id: UUID) -> TeamDefinition:
    """Return a team that the caller may read. Raises NotFound."""
    team = teams(actor).filter(pk=team_id).first()
    if team is None:
        raise NotFound("There is no such team.")
    return team


def newest_settings(teams: Sequence[TeamDefinition]) -> dict[UUID, dict[str, Any]]:
    """Map teams to the settings of their newest versions; one query."""
    rows = TeamVersion.objects.filter(team__in=teams).order_by("team_id", "-number").distinct("team_id")
    return dict(rows.values_list("team_id", "settings"))


def team_named(project: str, name: str) -> TeamDefinition | None:
    """Return the team that a run of a project names."""
    return TeamDefinition.objects.filter(project_id=project, name=name).first()


def team_versions(team: TeamDefinition) -> QuerySet[TeamVersion]:
    """Return the versions of a team, the newest first."""
    return TeamVersion.objects.filter(team=team).select_related("team").order_by("-number")


def team_row(team: TeamDefinition) -> dict[str, Any]:
    """Return a team of the list as a plain value."""
    return {
        "id": str(team.id),
        "project": team.project_id,
        "name": team.name,
        "description": team.description,
        "newest": team.newest_number,  # type: ignore[attr-defined] # annotated by teams
        "created_at": rfc3339(team.created_at),
        "updated_at": rfc3339(team.updated_at),
        "version": team.version,
        "url": f"/api/v1/teams/{team.id}",
        "web_url": f"/teams/{team.id}",
    }


def team_detail(team: TeamDefinition) -> dict[str, Any]:
    """Return a team with the settings of its newest version."""
    last = team_versions(team).first()
    return {**team_row(team), "settings": {} if last is None else last.settings}


def team_version_row(made: TeamVersion) -> dict[str, Any]:
    """Return a version of a team as a plain value."""
    return {
        "team": str(made.team_id),
        "name": made.team.name,
        "number": made.number,
        "settings": made.settings,
        "note": made.note,
        "author": made.author,
        "created_at": rfc3339(made.created_at),
        "url": f"/api/v1/teams/{made.team_id}/versions/{made.number}",
    }
