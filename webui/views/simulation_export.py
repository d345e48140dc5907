"""The figures of a simulation as a file: one line per preset and seed, everything that the page's table averages."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flexmarl.simulator.reporting.report import CAUSES, USES


def csv_of(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Write presets in the order given; idle columns are shares of held device time by cause."""
    lines = list(_lines(rows))
    written = io.StringIO()
    writer = csv.DictWriter(written, list(lines[0]) if lines else ["preset", "seed"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return written.getvalue()


def _lines(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    for preset, one in rows:
        for row in one["seeds"]:
            idle = {f"{use}_idle_{cause}": row["idle"][use][cause] for use in USES for cause in CAUSES}
            yield {"preset": preset, "seed": row["seed"], **row["figures"], **idle}
