"""Versions of agents and teams: read, added, and named by specifications."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from django.db.models import F, QuerySet
from django.db.models.functions import Now
from pydantic import BaseModel, ValidationError

from flexmarl.contracts.problems import Problem, problems_of
from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.agents.models import AgentDefinition, SavedVersion, TeamDefinition
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import Conflict, FieldError, NotFound, ValidationProblem

MOST_VERSIONS = 1000
SHOWN = 10
MOST = 2**31
"""Numbers of versions are below it."""

Version = TypeVar("Version", bound=SavedVersion)


def find(rows: "QuerySet[Version]", number: int) -> Version:
    """Return a version of an agent or a team. Raises NotFound."""
    found = rows.filter(number=number).first()
    if found is None:
        raise NotFound(f"There is no version {number}.")
    return found


def add(
    owner: AgentDefinition | TeamDefinition,
    rows: "QuerySet[Version]",
    *,
    actor: Actor,
    settings: Mapping[str, Any],
    note: str,
    description: str | None,
    based_on: int | None,
) -> Version:
    """Save settings as the next of the versions of an owner, newest first, whose row the caller has locked.

    `based_on` is the version that was edited. Raises Conflict when somebody else saved one meanwhile.
    """
    last = rows.first()
    number, name = 0 if last is None else last.number, str(owner).partition("/")[2]
    if based_on is not None and based_on != number:
        detail = f"Version {number} of {name} was saved meanwhile; yours was made from version {based_on}."
        raise Conflict(detail, extra={"newest": number})
    if number >= MOST_VERSIONS:
        raise Conflict(f"{name} has {MOST_VERSIONS} versions, which is the most. Use another name.")
    columns = {} if description is None else {"description": description}
    type(owner).objects.filter(pk=owner.pk).update(version=F("version") + 1, updated_at=Now(), **columns)
    made = owner.versions.create(number=number + 1, settings=settings, note=note, author=actor.name)
    kind = "agent" if isinstance(owner, AgentDefinition) else "team"
    before = None if last is None else last.settings
    record(actor, f"{kind}.save", kind, owner.id, name, project=owner.project_id, before=before, after=settings)
    return cast("Version", made)


def checked(kind: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are kept: only what was set. Raises ValidationProblem with every refusal."""
    if errors := refusals(kind, given):
        raise ValidationProblem(errors[0].detail, errors=errors)
    return kind.model_validate(dict(given)).model_dump(mode="json", exclude_unset=True)


def refusals(kind: type[BaseModel], settings: Mapping[str, Any]) -> list[FieldError]:
    """Return what is wrong with settings."""
    try:
        kind.model_validate(dict(settings))
    except ValidationError as error:
        return [
            FieldError(f"/settings{one.pointer}", one.code, one.detail, one.hint)
            for one in problems_of(error, kind, settings)
        ]
    return []


def in_project(project: str) -> None:
    """Raise ValidationProblem where there is no such project."""
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail)])


def reference_in(node: object, member: str) -> tuple[str, int | None] | None:
    """Return the name and the number, None for the newest, that a part of a specification refers to.

    None where it refers to nothing, or so badly that the types refuse it.
    """
    named = node.get(member) if isinstance(node, Mapping) else None
    if not isinstance(named, Mapping) or set(named) - {"name", "version"}:
        return None
    name, number = named.get("name"), named.get("version")
    whole = number is None or (isinstance(number, int) and not isinstance(number, bool) and 0 < number < MOST)
    return (name, number) if whole and isinstance(name, str) and "\0" not in name else None


def without_version(where: str, name: str, number: int | None, rows: "QuerySet[Any]") -> Problem | None:
    """Refuse a number that none of the versions has; None where there are no versions at all."""
    numbers = ", ".join(map(str, rows.values_list("number", flat=True)[:SHOWN]))
    if not numbers:
        return None
    detail = f"{name} has no version {number}."
    return Problem(pointer=f"{where}/version", code="unknown_version", detail=detail, hint=f"It has {numbers}.")
