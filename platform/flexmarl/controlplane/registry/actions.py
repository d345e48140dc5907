"""Changes of models: permission, check, write, audit. Nodes import what is asked for here."""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.models import OPEN, WorkState
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import (
    FieldError,
    InvalidState,
    PermissionDenied,
    RateLimited,
    ValidationProblem,
)
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.registry import queries
from flexmarl.controlplane.registry.models import LanguageModel
from flexmarl.controlplane.registry.sources import read_source
from flexmarl.store.control import model_rows

MOST_OPEN = 20
"""Imports of a project that wait or run."""


@transaction.atomic
def import_model(
    actor: Actor, *, name: str, source: Mapping[str, Any], project: str = DEFAULT_PROJECT
) -> LanguageModel:
    """Ask for an import, as the next version of its name. Raises ValidationProblem."""
    actor.require(Scope.RUNS_WRITE, project)
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail)])
    return _ask(actor, project, name, read_source(actor, project, source).model_dump(mode="json"))


@transaction.atomic
def promote(
    actor: Actor, *, project: str, name: str, source: Mapping[str, Any], origin: tuple[int, int]
) -> LanguageModel:
    """Ask for a model made of a checkpoint that the caller may read: `origin` is number of the run and step."""
    actor.require(Scope.RUNS_WRITE, project)
    return _ask(actor, project, name, source, origin)


def _ask(
    actor: Actor, project: str, name: str, wanted: Mapping[str, Any], origin: tuple[int, int] | None = None
) -> LanguageModel:
    waiting = LanguageModel.objects.filter(project=project, state__in=OPEN).count()
    if waiting >= MOST_OPEN:
        detail = f"{waiting} imports of {project} are waiting or running. Cancel one, or try again later."
        raise RateLimited(detail, headers={"Retry-After": "30"})
    made, owner = uuid7(), (actor.name, str(actor.user_id or ""))
    revision = model_rows.create(store_connection(), made, project, name, wanted, owner, origin)
    after = {"source": wanted, "revision": revision}
    record(actor, "model.import", "model", made, name, project=project, after=after)
    return queries.find_model(actor, made)


@transaction.atomic
def cancel(actor: Actor, model: LanguageModel, precondition: Precondition = any_version) -> LanguageModel:
    """End an import that waits or runs."""
    locked = _locked(actor, model, precondition)
    if locked.state not in OPEN:
        raise InvalidState(f"{locked} is {locked.state} already.", state=locked.state, allowed_actions=["archive"])
    _write(locked, state=WorkState.CANCELLED, reason_text=f"cancelled by {actor.name}", finished_at=Now(), now_at="")
    record(actor, "model.cancel", "model", locked.id, locked.name, project=locked.project)
    return queries.find_model(actor, locked.id)


@transaction.atomic
def archive(actor: Actor, model: LanguageModel, precondition: Precondition = any_version) -> LanguageModel:
    """Take a model from those that new runs may name. Runs that name it go on."""
    locked = _locked(actor, model, precondition)
    if locked.state in OPEN or locked.archived_at:
        state = "archived" if locked.archived_at else locked.state
        raise InvalidState(f"{locked} is {state}.", state=state, allowed_actions=queries.allowed_actions(locked))
    _write(locked, archived_at=Now())
    record(actor, "model.archive", "model", locked.id, locked.name, project=locked.project)
    return queries.find_model(actor, locked.id)


@transaction.atomic
def restore(actor: Actor, model: LanguageModel, precondition: Precondition = any_version) -> LanguageModel:
    """Let new runs name an archived model again."""
    locked = _locked(actor, model, precondition)
    if not locked.archived_at:
        actions = queries.allowed_actions(locked)
        raise InvalidState(f"{locked} is not archived.", state=locked.state, allowed_actions=actions)
    _write(locked, archived_at=None)
    record(actor, "model.restore", "model", locked.id, locked.name, project=locked.project)
    return queries.find_model(actor, locked.id)


def _locked(actor: Actor, model: LanguageModel, precondition: Precondition) -> LanguageModel:
    """Lock the row. Raises PermissionDenied for models of others, without `runs:act-any`."""
    if not queries.may_change(actor, model):
        needed = Scope.RUNS_WRITE if queries.is_own(actor, model) else Scope.RUNS_ACT_ANY
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})
    locked = LanguageModel.objects.select_for_update().get(pk=model.pk)
    precondition(locked.version)
    return locked


def _write(model: LanguageModel, **columns: Any) -> None:
    LanguageModel.objects.filter(pk=model.pk).update(version=F("version") + 1, updated_at=Now(), **columns)
