"""What pages and REST read of agents that can be talked to, and of keys for it."""

from datetime import UTC
from typing import Any
from uuid import UUID

from django.db.models import Max, Prefetch, QuerySet
from django.utils import timezone

from flexmarl.controlplane.accounts import queries as accounts
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.playground.keys import DEFAULT_REQUESTS, DEFAULT_TOKENS
from flexmarl.controlplane.playground.models import ServingDay, ServingKey
from flexmarl.controlplane.playground.models_of import Model, ModelNotFound, RunArchived, find
from flexmarl.controlplane.playground.observations import examples
from flexmarl.controlplane.playground.speaking import NoTokenizer, known_words, reply_length, tokenizer_of
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories.decoding import renderer_of
from flexmarl.store.control import engines

__all__ = [
    "DEFAULT_QUOTAS", "ModelNotFound", "NoTokenizer", "RunArchived", "agent", "day_row", "days_of", "find",
    "key_of", "key_row", "keys_of", "served",
]  # fmt: skip


DEFAULT_QUOTAS = {"requests_per_minute": DEFAULT_REQUESTS, "tokens_per_day": DEFAULT_TOKENS}
"""Of a key that says nothing else."""


def agent(model: Model) -> dict[str, Any]:
    """Return how to talk to an agent: its words, observations to begin with, its sampling."""
    return {
        "role": model.role,
        "policy": model.policy,
        "newest": model.version,
        "chat": renderer_of(model.run.no, model.policy) is not None,
        "words": known_words(tokenizer_of(model)),
        "examples": examples(model.run, model.role),
        "max_tokens": reply_length(model),
        "temperature": model.agent["sampling"]["temperature"],
    }


def served(run: Run) -> dict[str, list[int]]:
    """Return which versions of each policy the run's own engines answer for now, newest first."""
    found: dict[str, set[int]] = {}
    for route in engines.routes(store_connection(), run.no):
        for pins in (route.holds, route.former):
            for policy, pin in pins.items():
                found.setdefault(policy, set()).add(pin.version)
    return {policy: sorted(versions, reverse=True) for policy, versions in found.items()}


def keys_of(actor: Actor, project: str) -> QuerySet[ServingKey]:
    """Keys of a project with their use, newest first. Raises NotFound or PermissionDenied."""
    name = accounts.find_project(actor, project).name
    actor.require(Scope.MODELS_USE, name)
    today = ServingDay.objects.filter(day=timezone.now().astimezone(UTC).date())
    rows = ServingKey.objects.filter(project_id=name).select_related("created_by")
    used = rows.annotate(used_at=Max("days__used_at")).order_by("-id")
    return used.prefetch_related(Prefetch("days", today, "today"))


def key_of(actor: Actor, project: str, key_id: UUID | str) -> ServingKey:
    """Return a key of a project. Raises NotFound."""
    found = keys_of(actor, project).filter(pk=key_id).first()
    if found is None:
        raise NotFound(f"{project} has no such serving key.")
    return found


def key_row(key: ServingKey) -> dict[str, Any]:
    """Return a key without its secret, with what was used today (UTC)."""
    today: list[ServingDay] = getattr(key, "today", [])
    url = f"/api/v1/projects/{key.project_id}/serving-keys/{key.id}"
    return {
        "id": str(key.id),
        "name": key.name,
        "key": str(key),
        "project": key.project_id,
        "created_by": key.created_by.username if key.created_by else None,
        "models": key.model_names,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_day": key.tokens_per_day,
        "today": _used(today[0] if today else ServingDay()),
        "state": "revoked" if key.revoked_at else "active",
        "created_at": rfc3339(key.created_at),
        "updated_at": rfc3339(key.updated_at),
        "revoked_at": rfc3339(key.revoked_at),
        "last_used_at": rfc3339(getattr(key, "used_at", None)),
        "version": key.version,
        "url": url,
        "web_url": f"/serving-keys?project={key.project_id}",
    }


def days_of(key: ServingKey) -> QuerySet[ServingDay]:
    """Days on which a key was used, newest first."""
    return ServingDay.objects.filter(key=key)


def day_row(day: ServingDay) -> dict[str, Any]:
    """Return what was used on a day."""
    return {"day": day.day.isoformat(), **_used(day)}


def _used(day: ServingDay) -> dict[str, int]:
    return {
        "requests": day.requests,
        "refused": day.refused,
        "prompt_tokens": day.prompt_tokens,
        "completion_tokens": day.completion_tokens,
        "tokens": day.tokens,
    }
