"""What others read of models, as plain values; and which ones a specification may name."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.models import OPEN, WorkState
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.registry.models import LanguageModel


def language_models(actor: Actor) -> QuerySet[LanguageModel]:
    """The models of projects that the caller may read runs of, newest first."""
    return in_reach(LanguageModel.objects.all(), actor, Scope.RUNS_READ, "project")


def find_model(actor: Actor, reference: UUID) -> LanguageModel:
    """Return a model. Raises NotFound, also when the caller may not know of it."""
    found = language_models(actor).filter(pk=reference).first()
    if found is None:
        raise NotFound("There is no such model.")
    return found


def usable(actor: Actor, project: str, name: str) -> QuerySet[LanguageModel]:
    """The versions of a model that a run of the caller may name, newest first."""
    rows = language_models(actor).filter(project=project, name=name, state=WorkState.DONE, archived_at__isnull=True)
    return rows.order_by("-revision")


def versions(actor: Actor, model: LanguageModel) -> QuerySet[LanguageModel]:
    """The imports of a model's name in its project, newest first."""
    return language_models(actor).filter(project=model.project, name=model.name).order_by("-revision")


def offered(actor: Actor, most: int) -> list[dict[str, Any]]:
    """Return the newest version of each model that a run of the caller may name, by name; at most so many."""
    rows = language_models(actor).filter(state=WorkState.DONE, archived_at__isnull=True)
    newest = rows.order_by("name", "project", "-revision").distinct("name", "project")
    return [model_row(model) for model in newest[:most]]


def may_change(actor: Actor, model: LanguageModel) -> bool:
    """Say whether a caller may cancel and archive a model."""
    own = is_own(actor, model) and actor.may(Scope.RUNS_WRITE, model.project)
    return own or actor.may(Scope.RUNS_ACT_ANY, model.project)


def is_own(actor: Actor, model: LanguageModel) -> bool:
    """Say whether the caller asked for the import."""
    return actor.user_id is not None and model.owner_id == str(actor.user_id)


def allowed_actions(model: LanguageModel) -> list[str]:
    """List what its state allows."""
    if model.state in OPEN:
        return ["cancel"]
    return ["restore"] if model.archived_at else ["archive"]


def model_row(model: LanguageModel) -> dict[str, Any]:
    """Return a model as a row of a list."""
    facts = model.facts
    return {
        "id": str(model.id),
        "project": model.project,
        "name": model.name,
        "revision": model.revision,
        "source": model.source,
        "owner": model.owner or None,
        "state": model.state,
        "reason": model.reason,
        "reason_text": model.reason_text,
        "now": model.now_at,
        "digest": model.digest,
        "architecture": facts.get("architecture", ""),
        "licence": facts.get("licence", ""),
        "parameters": facts.get("parameters"),
        "bytes": facts.get("bytes"),
        "context": facts.get("context"),
        "vocabulary": facts.get("vocabulary"),
        "allowed_actions": allowed_actions(model),
        "archived_at": rfc3339(model.archived_at),
        "created_at": rfc3339(model.created_at),
        "updated_at": rfc3339(model.updated_at),
        "started_at": rfc3339(model.started_at),
        "finished_at": rfc3339(model.finished_at),
        "version": model.version,
        "url": f"/api/v1/models/{model.id}",
    }


def model_detail(model: LanguageModel) -> dict[str, Any]:
    """Return a model with all that was found in it; `facts` is empty until it is imported."""
    return {**model_row(model), "facts": model.facts}
