"""Changes of serving keys, and the check of one. Admins of a project make, change and revoke its keys."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from flexmarl.controlplane.accounts import tokens
from flexmarl.controlplane.accounts.actions.projects import locked_project
from flexmarl.controlplane.accounts.actions.refusals import bad
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import Conflict, FieldError, NotFound, Unauthenticated
from flexmarl.controlplane.playground.models import ServingKey
from flexmarl.controlplane.playground.models_of import ModelNotFound, RunArchived, find

PREFIX = "fmk_"
DEFAULT_REQUESTS, DEFAULT_TOKENS = 60, 100_000
MOST_TOKENS = 10**12
MOST_MODELS = 50
KEYS_OF_PROJECT = 200
"""Keys of a project that are not revoked."""


_COLUMNS = {"models": "model_names"}
"""Member of a key that its column is not named after -> the column."""


class InvalidKey(Unauthenticated):
    code = "invalid_api_key"
    title = "The key is not valid"


def check(text: str) -> ServingKey:
    """Return the usable key of a text. Raises InvalidKey without saying which part was wrong."""
    pair = tokens.split(text, PREFIX)
    key = ServingKey.objects.filter(key=pair[0]).first() if pair else None
    if pair is None or key is None or not tokens.matches(pair[1], key.secret_hash):
        raise _invalid("Unknown serving key.")
    if key.revoked_at is not None:
        raise _invalid("The serving key is revoked.")
    return key


@transaction.atomic
def create(
    actor: Actor, project: str, name: str, requests_per_minute: int, tokens_per_day: int, models: Sequence[str] = ()
) -> tuple[ServingKey, str]:
    """Make a key of a project. Returns it with its text, which cannot be shown again."""
    home = locked_project(actor, project)
    if ServingKey.objects.filter(project=home, revoked_at=None).count() >= KEYS_OF_PROJECT:
        raise Conflict(f"{project} has {KEYS_OF_PROJECT} keys. Revoke one first.")
    values = {
        "name": name,
        "requests_per_minute": _requests(requests_per_minute),
        "tokens_per_day": _tokens(tokens_per_day),
        "model_names": _models(actor, project, models),
    }
    new = tokens.make(PREFIX)
    key = ServingKey.objects.create(
        project=home, created_by_id=actor.user_id, key=new.key, secret_hash=new.secret_hash, **values
    )
    record(actor, "serving_key.create", "serving_key", key.id, name, project=project, after=values)
    return key, new.text


@transaction.atomic
def update(
    actor: Actor, project: str, key_id: UUID | str, changes: Mapping[str, Any], precondition: Precondition = any_version
) -> ServingKey:
    """Change its `name`, its quotas or its `models`. What is changed holds for the next call."""
    key = _kept(actor, project, key_id)
    precondition(key.version)
    if key.revoked_at is not None:
        raise Conflict(f"{key.name} is revoked. Create another key.")
    before = {_COLUMNS.get(name, name): getattr(key, _COLUMNS.get(name, name)) for name in changes}
    after = {_COLUMNS.get(name, name): _legal(actor, project, name, value) for name, value in changes.items()}
    if after != before:
        for name, value in after.items():
            setattr(key, name, value)
        key.version += 1
        key.save(update_fields=[*after, "version", "updated_at"])
        record(
            actor, "serving_key.update", "serving_key", key.id, key.name, project=project, before=before, after=after
        )
    return key


@transaction.atomic
def revoke(actor: Actor, project: str, key_id: UUID | str, precondition: Precondition = any_version) -> None:
    """Revoke a key for good; answers under way are finished. Revoking twice changes nothing."""
    key = _kept(actor, project, key_id)
    precondition(key.version)
    if key.revoked_at is None:
        key.revoked_at, key.version = timezone.now(), key.version + 1
        key.save(update_fields=["revoked_at", "version", "updated_at"])
        record(actor, "serving_key.revoke", "serving_key", key.id, key.name, project=project)


def _kept(actor: Actor, project: str, key_id: UUID | str) -> ServingKey:
    home = locked_project(actor, project)
    key = ServingKey.objects.select_for_update().filter(pk=key_id, project=home).first()
    if key is None:
        raise NotFound(f"{project} has no such serving key.")
    return key


def _legal(actor: Actor, project: str, name: str, value: Any) -> Any:
    match name:
        case "requests_per_minute":
            return _requests(value)
        case "tokens_per_day":
            return _tokens(value)
        case "models":
            return _models(actor, project, value)
        case _:
            return value


def _requests(wanted: int) -> int:
    most = settings.API_RATES["models"]
    if not 1 <= wanted <= most:
        detail = f"{wanted} is not between 1 and {most}, what the installation lets one key send."
        hint = "An administrator raises it with FLEXMARL_API_MODELS_PER_MINUTE."
        raise bad("/requests_per_minute", "out_of_range", detail, hint)
    return wanted


def _tokens(wanted: int) -> int:
    if not 1 <= wanted <= MOST_TOKENS:
        detail = f"{wanted} is not between 1 and {MOST_TOKENS}."
        raise bad("/tokens_per_day", "out_of_range", detail, f"The default is {DEFAULT_TOKENS}.")
    return wanted


def _models(actor: Actor, project: str, names: Sequence[str]) -> list[str]:
    """Return names of models of the project, each once. Raises the refusal of the first that is none."""
    if len(names) > MOST_MODELS:
        raise bad("/models", "too_many", f"At most {MOST_MODELS} models.", "An empty list allows all of the project.")
    for place, name in enumerate(names):
        try:
            found = find(actor, name).run.project_id
        except (ModelNotFound, RunArchived) as refused:
            hint = next((error.hint for error in refused.errors), "")
            raise bad(f"/models/{place}", refused.code, refused.detail, hint) from None
        if found != project:
            hint = f"Use models of {project}, such as {name.partition('/')[0]}'s of that project."
            raise bad(f"/models/{place}", "model_not_found", f"{name} is of the project {found}.", hint)
    return list(dict.fromkeys(names))


def _invalid(detail: str) -> InvalidKey:
    hint = "An admin of the project creates keys on the page Serving keys."
    return InvalidKey(detail, errors=[FieldError("Authorization", InvalidKey.code, detail, hint, "header")])
