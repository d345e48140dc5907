"""What an archive of a million rows costs: to draw 1 000 rows of it, to take in a step's groups, to be stored.

`python tests/benchmarks/replay_draw.py --out FILE [--repeats 9]`: processor milliseconds, median and slowest.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec

from flexmarl.algorithms.replay import ArchivedGroup, Order, add, draw, expire

GROUPS, MEMBERS, TAKEN, AGES = 125_000, 8, 125, 32


def archive_of(groups: int) -> list[ArchivedGroup]:
    rows = [(member, 1, "solver", 0, (0.5,), 1.0, 64) for member in range(MEMBERS)]
    return [ArchivedGroup(number * AGES // groups, number, -1, list(rows)) for number in range(groups)]


def timed(repeats: int, made: Callable[[], object], work: Callable[[object], object]) -> dict[str, float]:
    took = []
    for _ in range(repeats):
        given = made()
        began = time.process_time()
        work(given)
        took.append(1000 * (time.process_time() - began))
    return {"median_ms": round(statistics.median(took), 3), "slowest_ms": round(max(took), 3)}


def drawn(order: Order) -> Callable[[object], object]:
    def work(archive: list[ArchivedGroup]) -> None:
        expire(archive, AGES, AGES)
        found = draw(archive, TAKEN, 0, 1, order)
        assert sum(len(group.rows) for group in found) == TAKEN * MEMBERS

    return work  # type: ignore[return-value]


def taken_in(archive: list[ArchivedGroup]) -> None:
    for group in archive_of(TAKEN):
        add(archive, ArchivedGroup(AGES, GROUPS + group.draw, 0, group.rows))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--repeats", type=int, default=9)
    given = asked.parse_args()

    def fresh() -> list[ArchivedGroup]:
        return archive_of(GROUPS)

    found = {f"draw 1000 rows, {order}": timed(given.repeats, fresh, drawn(order)) for order in get_args(Order)}
    found["take in 1000 rows"] = timed(given.repeats, fresh, taken_in)  # type: ignore[arg-type]
    found["encode for a snapshot"] = timed(given.repeats, fresh, msgspec.json.Encoder().encode)
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
