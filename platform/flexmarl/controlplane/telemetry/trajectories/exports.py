"""Trajectories as lines of JSON, some at a time: a run of any size is never held in memory."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.runs.models import Run
from flexmarl.controlplane.telemetry.trajectories.trajectories import described, turns_tokens
from flexmarl.store.reads import episodes, trajectories
from flexmarl.store.reads.episodes import EpisodeFilter, Ordering, Position
from flexmarl.store.reads.trajectories import EpisodeDetail

LinesOf = Callable[[Run, EpisodeDetail], Iterable[dict[str, Any]]]
"""What an episode is exported as."""
BATCH = 100
MOST = 10_000_000


def batches(
    run: Run, wanted: EpisodeFilter, ordering: Ordering, most: int | None, lines_of: LinesOf | None = None
) -> Iterator[bytes]:
    """Read the episodes that match, in order, as newline-ended documents: one for each, or those of `lines_of`."""
    lines_of = lines_of or _whole
    position: Position | None = None
    left = MOST if most is None else most
    while left > 0:
        conn = store_connection()
        cut = episodes.page(conn, run.no, wanted, ordering, limit=min(BATCH, left), position=position)
        if cut.rows:
            found = trajectories.details(conn, run.no, [row.key for row in cut.rows])
            yield b"".join(orjson.dumps(line) + b"\n" for one in found for line in lines_of(run, one))
        left -= len(cut.rows)
        position = cut.behind
        if position is None:
            return


def _whole(run: Run, found: EpisodeDetail) -> Iterable[dict[str, Any]]:
    line = described(run, found)
    arrays = turns_tokens(run, found.turns)
    line["turns"] = [{**text, **own} for text, own in zip(line["turns"], arrays, strict=True)]
    return [line]
