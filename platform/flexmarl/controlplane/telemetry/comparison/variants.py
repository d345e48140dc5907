"""What differs between runs. Runs that differ only by their seed and name are one variant."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flexmarl.contracts.resolve import leaves
from flexmarl.controlplane.runs.models import Run

UNCOUNTED = ("/seed", "/name")
"""Pointers that make no other variant."""


@dataclass(slots=True)
class Variant:
    """Runs of one configuration. `values` are those of its specification that other variants have otherwise."""

    runs: list[Run]
    values: dict[str, Any] = field(default_factory=dict)
    baseline: bool = False


def variants(runs: Sequence[Run], baseline: Run | None) -> tuple[list[Variant], list[str]]:
    """Group runs into variants, the baseline's first, and return the pointers in which these differ."""
    by_key: dict[str, Variant] = {}
    documents: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        document = {pointer: value for pointer, value in leaves(run.spec) if pointer not in UNCOUNTED}
        key = json.dumps(document, sort_keys=True)
        documents[key] = document
        by_key.setdefault(key, Variant([])).runs.append(run)
    pointers = list(dict.fromkeys(pointer for document in documents.values() for pointer in document))
    differing = [pointer for pointer in pointers if _differs(pointer, list(documents.values()))]
    for key, variant in by_key.items():
        variant.values = {pointer: documents[key].get(pointer) for pointer in differing}
        variant.baseline = baseline is not None and baseline.pk in {run.pk for run in variant.runs}
    return sorted(by_key.values(), key=lambda one: not one.baseline), differing


def _differs(pointer: str, documents: Sequence[Mapping[str, Any]]) -> bool:
    found = {json.dumps(document[pointer], sort_keys=True) if pointer in document else "" for document in documents}
    return len(found) > 1
