"""Changes of agents: roles get their hue at first use, and definitions their versions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now
from pydantic import ValidationError

from flexmarl.contracts.problems import problems_of
from flexmarl.contracts.specification.instructions import render_instructions
from flexmarl.contracts.specification.team import AgentSettings
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.agents import queries
from flexmarl.controlplane.agents.models import AgentDefinition, AgentVersion
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, FieldError, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope

_LOCK = 0x48554553  # advisory lock number: two first uses must not draw the same hue
MOST_VERSIONS = 1000


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
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail)])
    kept = _settings(settings)
    ensure_roles(project, [name])
    agent = AgentDefinition.objects.select_for_update().get(project_id=project, role=name)
    last = queries.newest(agent)
    newest = 0 if last is None else last.number
    if based_on is not None and based_on != newest:
        detail = f"Version {newest} of {name} was saved meanwhile; yours was made from version {based_on}."
        raise Conflict(detail, extra={"newest": newest})
    if newest >= MOST_VERSIONS:
        raise Conflict(f"{name} has {MOST_VERSIONS} versions, which is the most. Use another name.")
    columns = {} if description is None else {"description": description}
    AgentDefinition.objects.filter(pk=agent.pk).update(version=F("version") + 1, updated_at=Now(), **columns)
    made = AgentVersion.objects.create(agent=agent, number=newest + 1, settings=kept, note=note, author=actor.name)
    before = None if last is None else last.settings
    record(actor, "agent.save", "agent", agent.id, name, project=project, before=before, after=kept)
    return made


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are kept: only what was set. Raises ValidationProblem with every refusal."""
    try:
        return AgentSettings.model_validate(dict(given)).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        errors = [
            FieldError(f"/settings{one.pointer}", one.code, one.detail, one.hint)
            for one in problems_of(error, AgentSettings, given)
        ]
        raise ValidationProblem(errors[0].detail, errors=errors) from error


def preview(instructions: str, role: str, team: Sequence[str], environment: str) -> str:
    """Return what a seat is told; without instructions it is what the environment says. Raises ValidationProblem."""
    try:
        return render_instructions(instructions, role, team, environment) if instructions else environment
    except ValueError as error:
        text = str(error)
        raise ValidationProblem(text, errors=[FieldError("/instructions", "invalid", text)]) from error
