"""Which rows a policy is warmed up on: found with the rights of whoever submits, and pinned by version and digest."""

from collections.abc import Iterator, Mapping
from typing import Any

from flexmarl.contracts.problems import Problem, nearest
from flexmarl.contracts.specification.demonstrations import DatasetDemonstrations
from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.datasets import naming, queries
from flexmarl.controlplane.datasets.models import DatasetVersion
from flexmarl.controlplane.runs.row_sets import naming as row_set_naming
from flexmarl.language.dataset_rows import from_line
from flexmarl.language.demonstrations import conversation_of

LOOKED_AT = 100
"""Training rows of which one at least has to demonstrate something."""


def pinned(actor: Actor, project: str, name: str, policy: Mapping[str, Any]) -> dict[str, Any] | Problem | None:
    """Return a policy whose demonstrations, or imported rows, say their digest, or the refusal; None: it has none."""
    warmup = policy.get("warmup")
    rows = warmup.get("rows") if isinstance(warmup, Mapping) else None
    if rows is not None:
        chosen = row_set_naming.pinned(actor, project, row_set_naming.warmup_at(name), rows)
        return chosen if chosen is None or isinstance(chosen, Problem) else _with(policy, rows=chosen)
    shown = warmup.get("demonstrations") if isinstance(warmup, Mapping) else None
    named = naming.well_named(shown.get("dataset")) if isinstance(shown, Mapping) else None
    if named is None:
        return None
    found = naming.pinned(actor, project, named, f"{_where(name)}/dataset")
    if isinstance(found, Problem):
        return found
    return _with(policy, demonstrations={**policy["warmup"]["demonstrations"], "dataset": found})


def _with(policy: Mapping[str, Any], **shown: Any) -> dict[str, Any]:
    return {**policy, "warmup": {**policy["warmup"], **shown}}


def refusals(actor: Actor, project: str, name: str, shown: DatasetDemonstrations) -> Iterator[Problem]:
    """Refuse a column that the rows do not have, and rows that demonstrate nothing; make sure that the digest is the
    one that was found here."""
    dataset, where = shown.dataset, f"{_where(name)}/column"
    found = queries.usable(actor, dataset.project, dataset.name).filter(number=dataset.version or 0).first()
    if found is None:
        yield naming.gone(dataset, f"{_where(name)}/dataset")
        return
    if not dataset.digest or found.digest != dataset.digest:
        raise AssertionError(f"policies.{name}.warmup.demonstrations was not completed")
    columns = ", ".join(found.columns[:10]) or "none beside prompt and answer"
    if shown.column and shown.column not in found.columns:
        close = nearest(shown.column, found.columns)
        detail = f"{dataset.name} {dataset.version} has no column {shown.column}."
        hint = f"Did you mean {close}?" if close else f"It has {columns}."
        yield Problem(pointer=where, code="unknown_column", detail=detail, hint=hint)
    elif not _demonstrates(found, shown.column):
        what = (
            f"column {shown.column} has no texts and no conversations" if shown.column else "the rows have no answers"
        )
        hint = f"Name a column with the reply or the conversation: {columns}."
        detail = f"{dataset.name} {dataset.version} demonstrates nothing: {what}."
        yield Problem(pointer=where, code="no_demonstrations", detail=detail, hint=hint)


def _demonstrates(version: DatasetVersion, column: str) -> bool:
    rows = queries.rows(version).filter(held_out=False)[:LOOKED_AT]
    return any(conversation_of(from_line(bytes(row.line)), column) for row in rows)


def _where(policy: str) -> str:
    return f"/policies/{policy}/warmup/demonstrations"
