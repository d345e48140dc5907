"""A run's specification value by value: where each value came from, and what differs from another run.

A value is compared as JSON. A value that only one side has (another environment has other settings) differs.
"""

from collections.abc import Mapping
from typing import Any

from flexmarl.contracts.resolve import leaves
from flexmarl.controlplane.runs.models import Run

SOURCES = ("user", "template", "preset", "default")


def config_diff(run: Run, against: Run) -> dict[str, Any]:
    """Return every value of two runs side by side, in the order of the specification, and how many differ."""
    mine, theirs = dict(leaves(run.spec)), dict(leaves(against.spec))
    rows = [
        {
            "pointer": pointer,
            "value": mine.get(pointer),
            "present": pointer in mine,
            "source": source_of(run.sources, pointer) if pointer in mine else None,
            "other_value": theirs.get(pointer),
            "other_present": pointer in theirs,
            "other_source": source_of(against.sources, pointer) if pointer in theirs else None,
            "equal": pointer in mine and pointer in theirs and mine[pointer] == theirs[pointer],
        }
        for pointer in [*mine, *(pointer for pointer in theirs if pointer not in mine)]
    ]
    return {
        "run": {"id": str(run.id), "key": run.key, "name": run.name},
        "against": {"id": str(against.id), "key": against.key, "name": against.name},
        "different": sum(not row["equal"] for row in rows),
        "equal": sum(row["equal"] for row in rows),
        "results": rows,
    }


def source_of(sources: Mapping[str, str], pointer: str) -> str:
    """Say where a value came from; what nobody set is a default."""
    return sources.get(pointer, "default")
