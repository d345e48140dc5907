"""Saved views: who sees them and who may change them.

A view is its owner's alone until it is shared; then everybody who may read the project's runs sees it. Only its owner
changes or deletes it, and a project admin may delete a shared one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import DuplicateName, FieldError, NotFound, PermissionDenied
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.runs.marks import known_project
from flexmarl.controlplane.runs.models import SavedView

PAGES = ("runs", "trajectories", "events")
"""Pages whose state can be saved."""


def saved_views(actor: Actor) -> QuerySet[SavedView]:
    """Return the caller's own views and the shared ones of projects they read."""
    rows = in_reach(SavedView.objects.select_related("owner"), actor, Scope.RUNS_READ)
    return rows.filter(Q(owner_id=actor.user_id) | Q(shared=True)).order_by("id")


def find(actor: Actor, view_id: UUID) -> SavedView:
    """Return a view. Raises NotFound, also when it is another person's and not shared."""
    found = saved_views(actor).filter(pk=view_id).first()
    if found is None:
        raise NotFound("There is no such saved view.")
    return found


def create(
    actor: Actor, *, name: str, page: str, query: str = "", shared: bool = False, project: str = DEFAULT_PROJECT
) -> SavedView:
    """Keep a view. Sharing it needs the right to write in the project."""
    actor.require(Scope.RUNS_WRITE if shared else Scope.RUNS_READ, project)
    known_project(project)
    view = SavedView(owner_id=actor.person, project_id=project, page=page, name=name, query=query, shared=shared)
    with _once_per_name(name), transaction.atomic():
        view.save(force_insert=True)
        record(actor, "saved_view.create", "saved_view", view.id, name, project=project, shared=shared)
    return find(actor, view.id)


def change(actor: Actor, view: SavedView, *, precondition: Precondition = any_version, **changes: Any) -> SavedView:
    """Change a view's name, query or whether it is shared."""
    _require_owner(actor, view)
    if changes.get("shared"):
        actor.require(Scope.RUNS_WRITE, view.project_id)
    with _once_per_name(changes.get("name", view.name)), transaction.atomic():
        now = _locked(view, precondition)
        SavedView.objects.filter(pk=view.pk).update(version=F("version") + 1, updated_at=timezone.now(), **changes)
        before = {name: getattr(now, name) for name in changes}
        record(
            actor, "saved_view.update", "saved_view", view.id, view.name,
            project=view.project_id, before=before, after=changes,
        )  # fmt: skip
    return find(actor, view.id)


@transaction.atomic
def delete(actor: Actor, view: SavedView, precondition: Precondition = any_version) -> None:
    """Delete a view."""
    _locked(view, precondition)
    if not actor.may(Scope.PROJECTS_ADMIN, view.project_id):
        _require_owner(actor, view)
    record(actor, "saved_view.delete", "saved_view", view.id, view.name, project=view.project_id)
    view.delete()


def row(view: SavedView) -> dict[str, Any]:
    """Return a view as a plain value."""
    return {
        "id": str(view.id),
        "name": view.name,
        "page": view.page,
        "query": view.query,
        "shared": view.shared,
        "project": view.project_id,
        "owner": view.owner.username,
        "created_at": rfc3339(view.created_at),
        "updated_at": rfc3339(view.updated_at),
        "version": view.version,
        "url": f"/api/v1/saved-views/{view.id}",
        "web_url": f"/runs?{view.query}" if view.page == "runs" else "",
    }


def _locked(view: SavedView, precondition: Precondition) -> SavedView:
    """Read a view again under its lock. Raises NotFound when somebody deleted it meanwhile."""
    now = SavedView.objects.select_for_update(of=("self",)).filter(pk=view.pk).first()
    if now is None:
        raise NotFound("There is no such saved view.")
    precondition(now.version)
    return now


def _require_owner(actor: Actor, view: SavedView) -> None:
    if view.owner_id != actor.user_id:
        raise PermissionDenied("Only its owner may change a saved view.")


@contextmanager
def _once_per_name(name: str) -> Iterator[None]:
    """Turn the broken constraint of a second view of one name into a refusal."""
    try:
        yield
    except IntegrityError:
        detail = f"You already have a view {name} of this page."
        raise DuplicateName(detail, errors=[FieldError("/name", "duplicate", detail)]) from None
