"""Uploaded and fetched files: written in parts as they come in, read as a stream."""

import hashlib
import re
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from typing import BinaryIO, Protocol, cast

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from flexmarl.contracts.hub_datasets import ARCHIVE, FORMATS, format_of
from flexmarl.controlplane.accounts.models import Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.models import WorkState
from flexmarl.controlplane.common.problems import FieldError, NotFound, PayloadTooLarge, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.datasets.models import DatasetFetch, DatasetFile, FilePart
from flexmarl.store.control import dataset_fetches

PART_BYTES = 2**20
KEEP = timedelta(hours=24)
"""So long a file stays of which no version was made."""
_IN_MEMORY = 8 * 2**20
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Body(Protocol):
    """What is read of a request."""

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes; none at the end."""


@transaction.atomic
def upload(actor: Actor, *, project: str, name: str, body: Body) -> DatasetFile:
    """Keep a file. Raises ValidationProblem, PayloadTooLarge; the same file of a project is kept once."""
    actor.require(Scope.RUNS_WRITE, project)
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("project", "unknown_value", detail, "", "query")])
    kind = format_of(name)
    if kind is None:
        detail = f"{name[:80]} has none of the endings {', '.join(FORMATS)}."
        error = FieldError("name", "unknown_format", detail, "Name it by its format: train.jsonl.", "query")
        raise ValidationProblem(detail, errors=[error])
    _drop_unused()
    made = DatasetFile.objects.create(
        project_id=project, name=name[:200], format=kind, bytes=0, author=actor.name, digest=f"coming {uuid7()}"
    )
    digest, size = hashlib.sha256(), 0
    for place, part in enumerate(_parts(body)):
        size += len(part)
        if size > settings.MOST_DATASET_BYTES:
            most = f"At most {settings.MOST_DATASET_BYTES} bytes (FLEXMARL_MOST_DATASET_MIB)."
            raise PayloadTooLarge(f"{most} Import it in parts.")
        digest.update(part)
        FilePart.objects.create(file=made, place=place, body=part)
    return _named_by_digest(actor, made, digest.hexdigest(), size)


def _named_by_digest(actor: Actor, made: DatasetFile, digest: str, size: int) -> DatasetFile:
    """Return the file that a project has of these bytes already, or the new one."""
    there = DatasetFile.objects.filter(project_id=made.project_id, digest=digest, format=made.format).first()
    if there is not None:
        made.delete()
        DatasetFile.objects.filter(pk=there.pk).update(created_at=timezone.now())
        return there
    made.digest, made.bytes = digest, size
    made.save(update_fields=["digest", "bytes"])
    record(
        actor, "dataset.upload", "dataset_file", digest, made.name, project=made.project_id,
        after={"bytes": size, "format": made.format},
    )  # fmt: skip
    return made


def _parts(body: Body) -> Iterator[bytes]:
    """Cut a body into parts of one size, whatever the pieces in which it comes."""
    held = bytearray()
    while piece := body.read(PART_BYTES):
        held += piece
        while len(held) >= PART_BYTES:
            yield bytes(held[:PART_BYTES])
            del held[:PART_BYTES]
    if held:
        yield bytes(held)


def _drop_unused() -> None:
    """Delete files of which no version was made, a day after they came."""
    old = DatasetFile.objects.filter(versions=None, created_at__lt=timezone.now() - KEEP)
    DatasetFile.objects.filter(pk__in=old.values("pk")[:20], versions=None).delete()
    drop_unused_fetches()


def drop_unused_fetches() -> None:
    """Delete what was asked of a hub a day ago, with the archives of which no version was made."""
    kept = DatasetFile.objects.filter(fetch__isnull=False).values("fetch")
    old = DatasetFetch.objects.filter(created_at__lt=timezone.now() - KEEP).exclude(pk__in=kept)
    DatasetFetch.objects.filter(pk__in=[*old.values_list("pk", flat=True)[:20]]).delete()


def find_file(actor: Actor, project: str, digest: str) -> DatasetFile:
    """Return a file of a project that the caller may write to. Raises ValidationProblem."""
    found = find(actor, project, digest)
    if found is None:
        detail = f"{project} has no uploaded file {digest[:12]}."
        hint = "Upload it first: POST /api/v1/datasets/files. Files of which no version is made are kept for a day."
        raise ValidationProblem(detail, errors=[FieldError("/file", "unknown_file", detail, hint)])
    return found


def find(actor: Actor, project: str, digest: str) -> DatasetFile | None:
    """Return a file that was uploaded or fetched for a project, None where the caller may not know of it.

    One that was fetched is no row yet: it becomes one with the first version that is made of it.
    """
    if not actor.may(Scope.RUNS_READ, project) or not _DIGEST.fullmatch(digest):
        return None
    found = DatasetFile.objects.filter(project_id=project, digest=digest).order_by("-id").first()
    if found is not None:
        return found
    fetch = DatasetFetch.objects.filter(project=project, digest=digest, state=WorkState.DONE).first()
    if fetch is None:
        return None
    name = f"{fetch.found['repository']} {fetch.found['configuration']}"[:200]
    return DatasetFile(
        project_id=project, digest=digest, name=name, format=ARCHIVE, bytes=fetch.bytes, author=fetch.owner,
        origin=fetch.found, fetch=fetch.id,
    )  # fmt: skip


def kept(file: DatasetFile) -> DatasetFile:
    """Return a file as a row that a version may be made of."""
    if file.pk is not None:
        return file
    there, _ = DatasetFile.objects.get_or_create(
        project_id=file.project_id, digest=file.digest, format=file.format,
        defaults={name: getattr(file, name) for name in ("name", "bytes", "author", "origin", "fetch")},
    )  # fmt: skip
    return there


def parts(file: DatasetFile) -> Iterator[bytes]:
    """Return a file's bytes, part by part."""
    place = 0
    while True:
        part = _part(file, place)
        if part is None:
            return
        yield part
        place += 1


def _part(file: DatasetFile, place: int) -> bytes | None:
    if file.fetch is not None:
        return dataset_fetches.part(store_connection(), file.fetch, place)
    part = FilePart.objects.filter(file=file, place=place).values_list("body", flat=True).first()
    return None if part is None else bytes(part)


def opened(file: DatasetFile) -> BinaryIO:
    """Return a file to read from its beginning. Raises NotFound when it went meanwhile."""
    held = cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY))  # noqa: SIM115 - the caller closes it
    for part in parts(file):
        held.write(part)
    if held.tell() != file.bytes:
        held.close()
        raise NotFound("The file was removed meanwhile.")
    held.seek(0)
    return held
