"""Changes of imported rows: permission, check, write, audit."""

import re
import tempfile
from dataclasses import asdict
from typing import BinaryIO, cast

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from flexmarl.contracts.ids import NAME
from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import (
    DuplicateName,
    FieldError,
    InvalidState,
    PayloadTooLarge,
    ValidationProblem,
)
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.datasets.files import Body
from flexmarl.controlplane.runs.models import RowSet
from flexmarl.controlplane.runs.row_sets import queries, reading
from flexmarl.language.dataset_rows import digest_of
from flexmarl.store.data import dataset_contents

_PIECE = 2**20
_IN_MEMORY = 8 * 2**20


def imported(actor: Actor, *, name: str, body: Body, project: str = DEFAULT_PROJECT) -> RowSet:
    """Import an export that was packed as a tar file. The same rows under the same name are imported once.

    Raises ValidationProblem, PayloadTooLarge, or DuplicateName where other rows have the name.
    """
    actor.require(Scope.RUNS_WRITE, project)
    _check_name(name, project)
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as held:
        _receive(body, cast("BinaryIO", held))
        read = reading.read(cast("BinaryIO", held), settings.MOST_DATASET_ROWS)
    return _keep(actor, name, project, read)


@transaction.atomic
def _keep(actor: Actor, name: str, project: str, read: reading.ReadExport) -> RowSet:
    digest = digest_of((False, row) for row in read.rows)
    columns = {
        "source": read.about.run[:64], "environment": read.about.environment, "rows": len(read.rows),
        "roles": {role: asdict(rows) for role, rows in sorted(read.roles.items())},
        "digest": digest, "author": actor.name,
    }  # fmt: skip
    found, made = RowSet.objects.select_for_update().get_or_create(project_id=project, name=name, defaults=columns)
    if not made:
        if found.digest != digest:
            raise DuplicateName(f"{project} has other rows named {name}. Choose another name.")
        return found
    rows = (dataset_contents.ContentRow(False, "", row) for row in read.rows)
    dataset_contents.put(store_connection(), digest, rows, len(read.rows))
    after = {"digest": digest, "rows": found.rows, "source": found.source}
    record(actor, "row_set.import", "row_set", found.id, name, project=project, after=after)
    return found


def _check_name(name: str, project: str) -> None:
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("project", "unknown_value", detail, "", "query")])
    if not re.fullmatch(NAME, name):
        detail = "A name has lower-case letters, digits and _, 32 at most, and begins with a letter, such as good_run."
        code = "invalid" if name else "required"
        raise ValidationProblem(detail, errors=[FieldError("name", code, detail, "", "query")])


def _receive(body: Body, held: BinaryIO) -> None:
    while piece := body.read(_PIECE):
        if held.tell() + len(piece) > settings.MOST_DATASET_BYTES:
            most = f"At most {settings.MOST_DATASET_BYTES} bytes (FLEXMARL_MOST_DATASET_MIB)."
            raise PayloadTooLarge(f"{most} Export a shorter run.")
        held.write(piece)
    held.seek(0)


@transaction.atomic
def archive(actor: Actor, found: RowSet, precondition: Precondition = any_version) -> RowSet:
    """Take imported rows from those that new runs may name. Runs that name them go on."""
    locked = _locked(actor, found, precondition)
    if locked.archived_at:
        raise InvalidState(f"{locked.name} is archived.", state="archived", allowed_actions=["restore"])
    _write(locked, archived_at=Now())
    record(actor, "row_set.archive", "row_set", locked.id, locked.name, project=locked.project_id)
    return queries.find(actor, locked.id)


@transaction.atomic
def restore(actor: Actor, found: RowSet, precondition: Precondition = any_version) -> RowSet:
    """Let new runs name archived rows again."""
    locked = _locked(actor, found, precondition)
    if not locked.archived_at:
        raise InvalidState(f"{locked.name} is not archived.", state="active", allowed_actions=["archive"])
    _write(locked, archived_at=None)
    record(actor, "row_set.restore", "row_set", locked.id, locked.name, project=locked.project_id)
    return queries.find(actor, locked.id)


def _locked(actor: Actor, found: RowSet, precondition: Precondition) -> RowSet:
    actor.require(Scope.RUNS_WRITE, found.project_id)
    locked = RowSet.objects.select_for_update().get(pk=found.pk)
    precondition(locked.version)
    return locked


def _write(found: RowSet, **columns: object) -> None:
    RowSet.objects.filter(pk=found.pk).update(version=F("version") + 1, updated_at=Now(), **columns)
