"""How often the rows of a dataset were solved, over the runs that a caller may read."""

from collections.abc import Sequence
from typing import Any

from flexmarl.controlplane.common.actor import Actor
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.datasets import queries as datasets
from flexmarl.controlplane.runs import queries
from flexmarl.language.dataset_rows import from_line
from flexmarl.store.reads import question_rates

MOST_ROWS = 200
MOST_RUNS = 20
"""The newest runs of the version that are counted."""


def solve_rates(actor: Actor, dataset: Any, version: Any, places: Sequence[int]) -> dict[str, Any]:
    """Return what came of rows of a version; two rows that ask the same share what came of it."""
    using = queries.of_dataset(actor, dataset.project_id, dataset.name)
    using = using.filter(spec__environment__dataset__digest=version.digest)
    runs = list(using.values_list("no", flat=True)[:MOST_RUNS])
    rows = datasets.rows(version).filter(place__in=places)
    asked = {row.place: from_line(bytes(row.line)).prompt for row in rows}
    found = question_rates.rates_of(store_connection(), runs, list(set(asked.values())))
    return {
        "runs": len(runs),
        "rows": [
            {
                "place": place,
                "episodes": found[prompt].episodes,
                "solved": found[prompt].solved,
                "mean_score": found[prompt].mean_score,
            }
            for place, prompt in sorted(asked.items())
            if prompt in found
        ],
    }
