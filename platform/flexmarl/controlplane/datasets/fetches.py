"""Datasets of a hub: what people ask for, what a node made of it, and how it is ended."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now
from pydantic import ValidationError

from flexmarl.contracts.hub_datasets import HubDataset, HubListing
from flexmarl.contracts.hub_models import SETTING
from flexmarl.contracts.problems import problems_of
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.models import OPEN, WorkState
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import FieldError, InvalidState, NotFound, RateLimited, ValidationProblem
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.datasets import files
from flexmarl.controlplane.datasets.models import DatasetFetch
from flexmarl.store.control import dataset_fetches

MOST_OPEN = 20
"""Fetches of a project that wait or run."""


def hub() -> str:
    """Return the address of the hub that datasets may be fetched from; empty: none."""
    return str(settings.HUB)


@transaction.atomic
def ask(actor: Actor, *, project: str = DEFAULT_PROJECT, **source: Any) -> DatasetFetch:
    """Ask for a listing of a repository, or for splits of it. Raises ValidationProblem."""
    actor.require(Scope.RUNS_WRITE, project)
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail)])
    wanted = _read(source).model_dump(mode="json")
    if not hub():
        detail = f"Datasets are not fetched from a hub here: the operator has not set {SETTING}."
        hint = "Download the file from the hub and upload it: POST /api/v1/datasets/files."
        raise ValidationProblem(detail, errors=[FieldError("/repository", "not_available", detail, hint)])
    waiting = DatasetFetch.objects.filter(project=project, state__in=OPEN).count()
    if waiting >= MOST_OPEN:
        detail = f"{waiting} fetches of {project} are waiting or running. Cancel one, or try again later."
        raise RateLimited(detail, headers={"Retry-After": "30"})
    files.drop_unused_fetches()
    made, owner = uuid7(), (actor.name, str(actor.user_id or ""))
    dataset_fetches.create(store_connection(), made, project, wanted, settings.MOST_DATASET_BYTES, owner)
    record(
        actor, "dataset.fetch", "dataset_fetch", made, wanted["repository"], project=project, after={"source": wanted}
    )
    return find(actor, made)


def _read(source: dict[str, Any]) -> HubDataset:
    try:
        return HubDataset.model_validate(source)
    except ValidationError as error:
        found = [FieldError(p.pointer, p.code, p.detail, p.hint) for p in problems_of(error, HubDataset, source)]
        raise ValidationProblem(found[0].detail, errors=found) from error


@transaction.atomic
def cancel(actor: Actor, fetch: DatasetFetch, precondition: Precondition = any_version) -> DatasetFetch:
    """End a fetch that waits or runs; what it brought is deleted."""
    actor.require(Scope.RUNS_WRITE, fetch.project)
    locked = DatasetFetch.objects.select_for_update().get(pk=fetch.pk)
    precondition(locked.version)
    if locked.state not in OPEN:
        raise InvalidState(f"The fetch is {locked.state} already.", state=locked.state, allowed_actions=[])
    DatasetFetch.objects.filter(pk=locked.pk).update(
        state=WorkState.CANCELLED, reason_text=f"cancelled by {actor.name}", finished_at=Now(), now_at="",
        version=F("version") + 1, updated_at=Now(),
    )  # fmt: skip
    dataset_fetches.drop_parts(store_connection(), locked.pk)
    name = locked.source["repository"]
    record(actor, "dataset_fetch.cancel", "dataset_fetch", locked.pk, name, project=locked.project)
    return find(actor, locked.pk)


def fetches(actor: Actor) -> QuerySet[DatasetFetch]:
    """The fetches of projects that the caller may read runs of, newest first."""
    return in_reach(DatasetFetch.objects.all(), actor, Scope.RUNS_READ, "project")


def find(actor: Actor, reference: UUID) -> DatasetFetch:
    """Return a fetch. Raises NotFound, also when the caller may not know of it."""
    found = fetches(actor).filter(pk=reference).first()
    if found is None:
        raise NotFound("There is no such fetch. Fetches are kept for a day.")
    return found


def fetch_row(fetch: DatasetFetch) -> dict[str, Any]:
    """Return a fetch as a plain value."""
    source, done = fetch.source, fetch.state == WorkState.DONE
    listing = HubListing.model_validate(fetch.found) if done and not source["configuration"] else None
    return {
        "id": str(fetch.id),
        "project": fetch.project,
        **source,
        "state": fetch.state,
        "reason": fetch.reason,
        "reason_text": fetch.reason_text,
        "now": fetch.now_at,
        "done_bytes": fetch.done_bytes,
        "bytes": fetch.bytes,
        "commit": fetch.found.get("commit", ""),
        "licence": fetch.found.get("licence", ""),
        "configurations": [] if listing is None else [one.model_dump(mode="json") for one in listing.configurations],
        "left_out": [] if listing is None else [one.model_dump(mode="json") for one in listing.left_out],
        "file": fetch.digest or None,
        "owner": fetch.owner or None,
        "allowed_actions": ["cancel"] if fetch.state in OPEN else [],
        "created_at": rfc3339(fetch.created_at),
        "started_at": rfc3339(fetch.started_at),
        "finished_at": rfc3339(fetch.finished_at),
        "version": fetch.version,
        "url": f"/api/v1/datasets/fetches/{fetch.id}",
    }
