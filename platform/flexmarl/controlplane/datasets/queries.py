"""What others read of datasets, as plain values; and which ones a specification may name."""

from typing import Any
from uuid import UUID

from django.db.models import Max, QuerySet

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.problems import NotFound
from flexmarl.controlplane.common.reach import in_reach
from flexmarl.controlplane.common.scopes import Scope
from flexmarl.controlplane.common.times import rfc3339
from flexmarl.controlplane.datasets.models import Dataset, DatasetFile, DatasetVersion, StoredRow
from flexmarl.language.dataset_rows import DatasetRow, from_line

_MOST_PLACE = 2**31


def datasets(actor: Actor) -> QuerySet[Dataset]:
    """The datasets of projects that the caller may read runs of, newest first."""
    rows = Dataset.objects.annotate(newest_number=Max("versions__number")).order_by("-id")
    return in_reach(rows, actor, Scope.RUNS_READ)


def find_dataset(actor: Actor, reference: UUID) -> Dataset:
    """Return a dataset. Raises NotFound, also when the caller may not know of it."""
    found = datasets(actor).filter(pk=reference).first()
    if found is None:
        raise NotFound("There is no such dataset.")
    return found


def versions(dataset: Dataset) -> QuerySet[DatasetVersion]:
    """Return the versions of a dataset, the newest first."""
    return DatasetVersion.objects.filter(dataset=dataset).select_related("dataset", "file").order_by("-number")


def newest(dataset: Dataset) -> DatasetVersion | None:
    """Return the last version that was saved."""
    return versions(dataset).first()


def find_version(dataset: Dataset, number: int) -> DatasetVersion:
    """Return a version of a dataset. Raises NotFound."""
    found = versions(dataset).filter(number=number).first()
    if found is None:
        raise NotFound(f"{dataset.name} has no version {number}.")
    return found


def usable(actor: Actor, project: str, name: str) -> QuerySet[DatasetVersion]:
    """The versions of a dataset that a run of the caller may name, newest first."""
    named = datasets(actor).filter(project_id=project, name=name, archived_at__isnull=True)
    return DatasetVersion.objects.filter(dataset__in=named.values("pk")).order_by("-number")


def offered(actor: Actor, most: int) -> list[dict[str, Any]]:
    """Return the datasets that a run of the caller may name, by name; at most so many."""
    rows = datasets(actor).filter(archived_at__isnull=True, versions__isnull=False).order_by("name", "project_id")
    return [dataset_row(dataset) for dataset in rows[:most]]


def rows(version: DatasetVersion, words: str = "") -> QuerySet[StoredRow]:
    """The rows of a version in the order of its file; of a search, those whose prompt has words that begin so."""
    found = StoredRow.objects.filter(digest=version.digest).order_by("place")
    if asked := " & ".join(_prefix(word) for word in words.split()):
        found = found.extra(
            where=["to_tsvector('simple', left(prompt, 20000)) @@ to_tsquery('simple', %s)"], params=[asked]
        )
    return found


def find_row(version: DatasetVersion, place: int) -> DatasetRow:
    """Return a row of a version. Raises NotFound."""
    found = rows(version).filter(place=place).first() if place < _MOST_PLACE else None
    if found is None:
        raise NotFound(f"Version {version.number} has no row {place}.")
    return from_line(bytes(found.line))


def _prefix(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}':*"


def allowed_actions(dataset: Dataset) -> list[str]:
    """List what its state allows."""
    return ["restore"] if dataset.archived_at else ["archive"]


def dataset_row(dataset: Dataset) -> dict[str, Any]:
    """Return a dataset as a row of a list."""
    number: int | None = dataset.newest_number  # type: ignore[attr-defined] # annotated by datasets
    return {
        "id": str(dataset.id),
        "project": dataset.project_id,
        "name": dataset.name,
        "description": dataset.description,
        "newest": number,
        "allowed_actions": allowed_actions(dataset),
        "archived_at": rfc3339(dataset.archived_at),
        "created_at": rfc3339(dataset.created_at),
        "updated_at": rfc3339(dataset.updated_at),
        "version": dataset.version,
        "url": f"/api/v1/datasets/{dataset.id}",
        "web_url": f"/datasets/{dataset.id}",
    }


def version_row(version: DatasetVersion) -> dict[str, Any]:
    """Return a version of a dataset as a plain value."""
    return {
        "dataset": str(version.dataset_id),
        "name": version.dataset.name,
        "project": version.dataset.project_id,
        "number": version.number,
        "digest": version.digest,
        "training": version.training,
        "held_out": version.held_out,
        "columns": version.columns,
        "mapping": version.mapping,
        "split": version.split,
        "file": file_row(version.file),
        "note": version.note,
        "author": version.author,
        "created_at": rfc3339(version.created_at),
        "url": f"/api/v1/datasets/{version.dataset_id}/versions/{version.number}",
    }


def file_row(file: DatasetFile) -> dict[str, Any]:
    """Return an uploaded or fetched file as a plain value."""
    return {
        "digest": file.digest,
        "project": file.project_id,
        "name": file.name,
        "format": file.format,
        "bytes": file.bytes,
        "origin": file.origin,
    }


def row_value(place: int, held_out: bool, row: DatasetRow) -> dict[str, Any]:
    """Return a row as a plain value."""
    return {
        "place": place,
        "held_out": held_out,
        "messages": [{"role": one.role, "content": one.content} for one in row.messages],
        "answer": row.answer,
        "columns": dict(row.columns),
    }


def content_row(row: StoredRow) -> dict[str, Any]:
    """Return a stored row as a plain value."""
    return row_value(row.place, row.held_out, from_line(bytes(row.line)))
