"""Imported rows as plain values, and which ones a specification may name."""

from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from flexmarl.contracts.row_files import game_of
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.api.filters import Parameter
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.models import RowSet

ORDERINGS = {"-created_at": "-id", "created_at": "id", "name": "name,project_id", "-name": "-name,-project_id"}
FILTERS = (
    Parameter("project", "Name of the project.", lookup="project_id"),
    Parameter("name", "Exact name.", lookup="name"),
    Parameter("q", "Part of the name.", lookup="name__icontains"),
    Parameter(
        "archived",
        "yes: only archived ones; no: only others.",
        choices=("yes", "no"),
        condition=lambda word: Q(archived_at__isnull=word == "no"),
    ),
)


def row_sets(actor: Actor) -> QuerySet[RowSet]:
    """The imported rows of projects that the caller may read runs of, newest first."""
    return in_reach(RowSet.objects.order_by("-id"), actor, Scope.RUNS_READ)


def find(actor: Actor, reference: UUID) -> RowSet:
    """Return imported rows. Raises NotFound, also when the caller may not know of them."""
    found = row_sets(actor).filter(pk=reference).first()
    if found is None:
        raise NotFound("There are no such imported rows.")
    return found


def usable(actor: Actor, project: str) -> QuerySet[RowSet]:
    """Those of a project that a run of the caller may name."""
    return row_sets(actor).filter(project_id=project, archived_at__isnull=True)


def allowed_actions(found: RowSet) -> list[str]:
    """List what its state allows."""
    return ["restore"] if found.archived_at else ["archive"]


def row(found: RowSet) -> dict[str, Any]:
    """Return imported rows as a plain value."""
    return {
        "id": str(found.id),
        "project": found.project_id,
        "name": found.name,
        "source": found.source,
        "game": game_of(found.environment),
        "environment": found.environment,
        "roles": found.roles,
        "rows": found.rows,
        "digest": found.digest,
        "author": found.author,
        "allowed_actions": allowed_actions(found),
        "archived_at": rfc3339(found.archived_at),
        "created_at": rfc3339(found.created_at),
        "updated_at": rfc3339(found.updated_at),
        "version": found.version,
        "url": f"/api/v1/row-sets/{found.id}",
    }
