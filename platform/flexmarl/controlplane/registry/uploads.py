"""Uploads of models: declared, received in pieces, given up, and cleared away.

Invariants: an upload belongs to a project and counts against its quota with all that it declared; nothing is received
that was not declared. Its files go when it expires, when it is given up and when a model was made of it, but never
while an import is reading them.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils import timezone
from pydantic import ValidationError

from flexmarl.contracts.uploaded_models import CONFIG, ENDINGS, PIECE_BYTES, WEIGHTS, UploadedFile
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.ids import uuid7
from flexmarl.controlplane.common.models import OPEN, WorkState
from flexmarl.controlplane.common.problems import (
    Busy,
    Conflict,
    FieldError,
    InvalidState,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    ValidationProblem,
)
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.common.value_errors import field_error
from flexmarl.controlplane.registry import upload_folders
from flexmarl.controlplane.registry.models import LanguageModel, ModelUpload

MOST_FILES = 500
GIB = 2**30


class UploadOffset(Conflict):
    code = "upload_offset"
    title = "The piece does not begin where the file ends"


class DiskFull(Busy):
    code = "disk_full"
    title = "The disk of the control plane is full"


def uploads(actor: Actor) -> QuerySet[ModelUpload]:
    """The uploads of projects that the caller may read runs of, newest first."""
    return in_reach(ModelUpload.objects.all(), actor, Scope.RUNS_READ)


def find_upload(actor: Actor, reference: UUID) -> ModelUpload:
    """Return an upload. Raises NotFound, also when the caller may not know of it."""
    found = uploads(actor).filter(pk=reference).first()
    if found is None:
        raise NotFound("There is no such upload.")
    return found


def upload_row(upload: ModelUpload) -> dict[str, Any]:
    """Return an upload with how far each of its files is."""
    files = [{**file, "received": upload_folders.received(upload.id, file["name"])} for file in upload.files]
    received = sum(file["received"] for file in files)
    return {
        "id": str(upload.id),
        "project": upload.project_id,
        "owner": upload.owner or None,
        "files": files,
        "bytes": upload.bytes,
        "received": received,
        "complete": received == upload.bytes,
        "piece_bytes": PIECE_BYTES,
        "created_at": rfc3339(upload.created_at),
        "expires_at": rfc3339(upload.expires_at),
        "url": f"/api/v1/models/uploads/{upload.id}",
    }


def create(actor: Actor, *, files: Sequence[Mapping[str, Any]], project: str = DEFAULT_PROJECT) -> ModelUpload:
    """Begin an upload of declared files. Raises ValidationProblem with every refusal."""
    actor.require(Scope.RUNS_WRITE, project)
    declared = _declared(files)
    size = sum(file.bytes for file in declared)
    clear()
    with transaction.atomic():
        # The project's row is the lock of its quota.
        if not Project.objects.select_for_update().filter(name=project).exists():
            detail = f"There is no project {project}."
            raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail)])
        _check_room(project, size)
        made = ModelUpload.objects.create(
            id=uuid7(),
            project_id=project,
            owner=actor.name,
            owner_id=str(actor.user_id or ""),
            files=[file.model_dump() for file in declared],
            bytes=size,
            expires_at=_expiry(),
        )
        after = {"files": [file.name for file in declared], "bytes": size}
        record(actor, "model_upload.create", "model_upload", made.id, str(made.id), project=project, after=after)
    return made


def receive(actor: Actor, upload: ModelUpload, name: str, offset: int, piece: bytes) -> dict[str, Any]:
    """Write a piece of a file; return the file with how far it is. Raises UploadOffset, PayloadTooLarge, NotFound."""
    _require(actor, upload)
    file = next((one for one in upload.files if one["name"] == name), None)
    if file is None:
        raise NotFound(f"The upload declared no file {name}.")
    if len(piece) > PIECE_BYTES:
        raise PayloadTooLarge(f"A piece has at most {PIECE_BYTES} bytes.")
    if offset + len(piece) > file["bytes"]:
        raise PayloadTooLarge(f"{name} was declared with {file['bytes']} bytes; this piece ends after them.")
    try:
        received = upload_folders.append(upload.id, name, offset, piece)
    except upload_folders.WrongOffset as wrong:
        extra = {"received": wrong.received}
        raise UploadOffset(f"{name} has {wrong.received} bytes: go on there.", extra=extra) from None
    except OSError as error:
        raise DiskFull(f"{name} could not be written: {error.strerror}.", headers={"Retry-After": "60"}) from None
    ModelUpload.objects.filter(pk=upload.pk).update(expires_at=_expiry())
    return {**file, "received": received}


@transaction.atomic
def give_up(actor: Actor, upload: ModelUpload) -> None:
    """Delete an upload and its files. Raises InvalidState while an import reads them."""
    _require(actor, upload)
    ModelUpload.objects.select_for_update().filter(pk=upload.pk).first()
    if _imports(str(upload.id)).filter(state__in=OPEN).exists():
        raise InvalidState("An import is reading it; cancel that first.", state="importing", allowed_actions=[])
    name = str(upload.id)
    record(actor, "model_upload.delete", "model_upload", upload.id, name, project=upload.project_id)
    upload.delete()
    transaction.on_commit(lambda: upload_folders.remove(UUID(name)))


def files_for_import(actor: Actor, project: str, reference: UUID) -> list[dict[str, Any]]:
    """Return the files of a complete upload of a project, locked against its removal. Raises ValidationProblem.

    An upload of another project is refused as if it did not exist.
    """
    upload = uploads(actor).select_for_update().filter(pk=reference, project_id=project).first()
    if upload is None:
        detail, hint = f"There is no upload {reference} in {project}.", "Make one: POST /api/v1/models/uploads."
        raise ValidationProblem(detail, errors=[FieldError("/source/id", "unknown_value", detail, hint)])
    row = upload_row(upload)
    missing = [file["name"] for file in row["files"] if file["received"] < file["bytes"]]
    if missing:
        detail, hint = f"{missing[0]} has not arrived whole.", f"Send the rest of: {', '.join(missing[:10])}."
        raise ValidationProblem(detail, errors=[FieldError("/source/id", "incomplete", detail, hint)])
    ModelUpload.objects.filter(pk=upload.pk).update(expires_at=_expiry())
    files: list[dict[str, Any]] = upload.files
    return files


def clear() -> int:
    """Remove uploads that have expired or became a model, and files of no upload; return how many uploads went."""
    here = upload_folders.present()  # before the rows are read: one that begins meanwhile is not among them
    with transaction.atomic():
        rows = ModelUpload.objects.select_for_update(skip_locked=True)
        imports = LanguageModel.objects.filter(source__type="upload")
        reading = set(imports.filter(state__in=OPEN).values_list("source__id", flat=True))
        over = set(imports.filter(state=WorkState.DONE).values_list("source__id", flat=True))
        now = timezone.now()
        gone = [row for row in rows if str(row.id) not in reading and (row.expires_at < now or str(row.id) in over)]
        for row in gone:
            row.delete()
    kept = set(ModelUpload.objects.values_list("id", flat=True))
    for upload in here:
        if upload not in kept:
            upload_folders.remove(upload)
    return len(gone)


def _declared(files: Sequence[Mapping[str, Any]]) -> list[UploadedFile]:
    errors, read = [], []
    for place, given in enumerate(files):
        try:
            file = UploadedFile.model_validate(dict(given))
        except ValidationError as error:
            errors += [_as_field_error(place, one) for one in error.errors()]
            continue
        read.append(file)
        if not file.name.endswith(ENDINGS):
            detail = f"{file.name} is not a model file that can be uploaded."
            errors.append(
                FieldError(f"/files/{place}/name", "invalid", detail, f"Legal endings: {', '.join(ENDINGS)}.")
            )
    names = [file.name for file in read]
    if len(files) > MOST_FILES:
        errors.append(FieldError("/files", "too_many", f"These are {len(files)} files.", f"At most {MOST_FILES}."))
    elif len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        errors.append(FieldError("/files", "duplicate", f"{twice} is declared twice.", "Declare each file once."))
    elif not errors and (CONFIG not in names or not any(name.endswith(WEIGHTS) for name in names)):
        detail = f"A model needs {CONFIG} and its weights as *{WEIGHTS}."
        errors.append(FieldError("/files", "required", detail, "Choose the files of a folder of transformers."))
    if errors:
        raise ValidationProblem(errors[0].detail, errors=errors)
    return sorted(read, key=lambda file: file.name)


def _as_field_error(place: int, error: Any) -> FieldError:
    hint = "A name without folders, such as model.safetensors." if error["loc"] == ("name",) else ""
    return field_error(error, f"/files/{place}", error["loc"], hint)


def _check_room(project: str, size: int) -> None:
    quota = settings.UPLOADS_GIB * GIB
    used = ModelUpload.objects.filter(project_id=project).aggregate(sum=Sum("bytes"))["sum"] or 0
    if used + size > quota:
        detail = f"The files have {size} bytes; uploads of {project} take {used} of {quota} already."
        hint = "Import or delete other uploads first; an operator sets FLEXMARL_UPLOADS_GIB."
        raise ValidationProblem(detail, errors=[FieldError("/files", "quota_exceeded", detail, hint)])
    if size > (free := upload_folders.free_bytes()):
        detail = f"The files have {size} bytes; the control plane's disk has {free} free."
        raise ValidationProblem(detail, errors=[FieldError("/files", "disk_full", detail, "Free space first.")])


def _require(actor: Actor, upload: ModelUpload) -> None:
    own = actor.user_id is not None and upload.owner_id == str(actor.user_id)
    needed = Scope.RUNS_WRITE if own else Scope.RUNS_ACT_ANY
    if not actor.may(needed, upload.project_id) and not actor.may(Scope.RUNS_ACT_ANY, upload.project_id):
        raise PermissionDenied(f"This needs the scope {needed}.", extra={"required_scopes": [str(needed)]})


def _imports(reference: str) -> QuerySet[LanguageModel]:
    return LanguageModel.objects.filter(source__type="upload", source__id=reference)


def _expiry() -> Any:
    return timezone.now() + timedelta(hours=settings.UPLOADS_HOURS)
