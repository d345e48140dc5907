"""Rows of the projects that a caller may see."""

from typing import TypeVar

from django.db.models import Model, QuerySet

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.scopes import Scope

Row = TypeVar("Row", bound=Model)


def in_reach(rows: QuerySet[Row], actor: Actor, scope: Scope, column: str = "project_id") -> QuerySet[Row]:
    """Keep the rows of projects in which the caller has a scope."""
    reach = actor.reach(scope)
    return rows if reach is None else rows.filter(**{f"{column}__in": reach})
