"""Changes of datasets: permission, check, write, audit."""

from collections.abc import Mapping
from contextlib import closing
from itertools import islice
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from flexmarl.controlplane.accounts.models import DEFAULT_PROJECT, Project
from flexmarl.controlplane.common.actions import record
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.preconditions import Precondition, any_version
from flexmarl.controlplane.common.problems import Conflict, FieldError, InvalidState, ValidationProblem
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.datasets import files, queries
from flexmarl.controlplane.datasets.archives import inputs_of
from flexmarl.controlplane.datasets.bad_rows import BadRow, UnreadableFile
from flexmarl.controlplane.datasets.importing import Imported, imported, read_choices
from flexmarl.controlplane.datasets.mapping import suggested, suggested_split
from flexmarl.controlplane.datasets.models import Dataset, DatasetFile, DatasetVersion
from flexmarl.controlplane.datasets.reading import rows_of
from flexmarl.store.data import dataset_contents

MOST_VERSIONS = 1000
EXAMPLES = 5
"""Rows of a preview."""


def first_look(file: DatasetFile) -> dict[str, Any]:
    """Return the columns and first rows of a file, and what their names suggest.

    Rows that cannot be read are left out: whoever previews or saves the file is told of them. Raises ValidationProblem
    where none of the first can be read: there is no column to choose.
    """
    examples: list[dict[str, Any]] = []
    bad: list[BadRow] = []
    with files.opened(file) as opened, closing(inputs_of(opened, file.format)) as inputs:
        try:
            first = next(inputs)
            for _, raw in islice(rows_of(first.file, first.kind), EXAMPLES):
                if isinstance(raw, BadRow):
                    bad.append(raw)
                else:
                    examples.append(raw)
        except UnreadableFile as unreadable:
            bad.append(unreadable.bad)
    if bad and not examples:
        error = bad[0].as_error()
        raise ValidationProblem(f"{error.detail} {error.hint}".strip(), errors=[error])
    columns = list(dict.fromkeys(name for row in examples for name in row))
    splits = list(dict.fromkeys(one["split"] for one in (file.origin or {}).get("files", ())))
    return {
        "columns": columns, "mapping": suggested(columns), "splits": splits, "split": suggested_split(splits),
        "examples": examples,
    }  # fmt: skip


def preview(
    actor: Actor, *, file: str, mapping: Mapping[str, Any], split: Mapping[str, Any], project: str = DEFAULT_PROJECT
) -> dict[str, Any]:
    """Return what a file would be under a mapping and a split. Raises ValidationProblem with its bad rows."""
    actor.require(Scope.RUNS_WRITE, project)
    choices = read_choices(mapping, split)
    found = files.find_file(actor, project, file)
    with files.opened(found) as opened:
        read = imported(opened, found.format, choices)
    shown = [
        queries.row_value(place, side, row.row)
        for place, (side, row) in enumerate(zip(read.held_out[:EXAMPLES], read.rows[:EXAMPLES], strict=True), start=1)
    ]
    return {**_counts(read), "digest": read.digest, "columns": read.columns, "examples": shown}


@transaction.atomic
def save(
    actor: Actor,
    *,
    name: str,
    file: str,
    mapping: Mapping[str, Any],
    split: Mapping[str, Any],
    project: str = DEFAULT_PROJECT,
    description: str | None = None,
    note: str = "",
) -> DatasetVersion:
    """Save a file's rows as the next version of a dataset; a name that is new is defined by it.

    Raises ValidationProblem with every bad row, and then keeps nothing. Rows that the newest version has already are
    that version.
    """
    actor.require(Scope.RUNS_WRITE, project)
    if not Project.objects.filter(name=project).exists():
        detail = f"There is no project {project}."
        raise ValidationProblem(detail, errors=[FieldError("/project", "unknown_value", detail)])
    choices = read_choices(mapping, split)
    found = files.find_file(actor, project, file)
    with files.opened(found) as opened:
        read = imported(opened, found.format, choices)
    columns = {} if description is None else {"description": description}
    dataset, made = Dataset.objects.select_for_update().get_or_create(project_id=project, name=name, defaults=columns)
    last = queries.newest(dataset)
    if last is not None and last.digest == read.digest:
        return last
    if last is not None and last.number >= MOST_VERSIONS:
        raise Conflict(f"{name} has {MOST_VERSIONS} versions, which is the most. Use another name.")
    _keep(read)
    version = DatasetVersion.objects.create(
        dataset=dataset, number=1 if last is None else last.number + 1, file=files.kept(found), digest=read.digest,
        mapping=choices.mapping.model_dump(mode="json"), split=choices.split.model_dump(mode="json"),
        columns=read.columns, note=note, author=actor.name, **_counts(read),
    )  # fmt: skip
    if not made:
        _write(dataset, **columns)
    after = {"number": version.number, "digest": version.digest, **_counts(read)}
    record(actor, "dataset.save", "dataset", dataset.id, name, project=project, after=after)
    return version


def _counts(read: Imported) -> dict[str, int]:
    held_out = sum(read.held_out)
    return {"training": len(read.rows) - held_out, "held_out": held_out}


def _keep(read: Imported) -> None:
    rows = (
        dataset_contents.ContentRow(side, row.prompt, row.line)
        for side, row in zip(read.held_out, read.rows, strict=True)
    )
    dataset_contents.put(store_connection(), read.digest, rows, len(read.rows))


@transaction.atomic
def archive(actor: Actor, dataset: Dataset, precondition: Precondition = any_version) -> Dataset:
    """Take a dataset from those that new runs may name. Runs that name it go on."""
    locked = _locked(actor, dataset, precondition)
    if locked.archived_at:
        raise InvalidState(f"{locked.name} is archived.", state="archived", allowed_actions=["restore"])
    _write(locked, archived_at=Now())
    record(actor, "dataset.archive", "dataset", locked.id, locked.name, project=locked.project_id)
    return queries.find_dataset(actor, locked.id)


@transaction.atomic
def restore(actor: Actor, dataset: Dataset, precondition: Precondition = any_version) -> Dataset:
    """Let new runs name an archived dataset again."""
    locked = _locked(actor, dataset, precondition)
    if not locked.archived_at:
        raise InvalidState(f"{locked.name} is not archived.", state="active", allowed_actions=["archive"])
    _write(locked, archived_at=None)
    record(actor, "dataset.restore", "dataset", locked.id, locked.name, project=locked.project_id)
    return queries.find_dataset(actor, locked.id)


def _locked(actor: Actor, dataset: Dataset, precondition: Precondition) -> Dataset:
    actor.require(Scope.RUNS_WRITE, dataset.project_id)
    locked = Dataset.objects.select_for_update().get(pk=dataset.pk)
    precondition(locked.version)
    return locked


def _write(dataset: Dataset, **columns: Any) -> None:
    Dataset.objects.filter(pk=dataset.pk).update(version=F("version") + 1, updated_at=Now(), **columns)
