"""Written checkpoints: a consistent cut over all policies, as folders on the node's disk.

Invariant: the row and the event appear together, after the files are durable. The newest `best` and `last` of a step
replace an earlier row of the same label and step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import orjson
from psycopg import Connection

from flexmarl.contracts.events import CheckpointWritten
from flexmarl.store.commands import Taken, finish, guard
from flexmarl.store.inbox import put_event


@dataclass(frozen=True, slots=True)
class Checkpoint:
    label: Literal["best", "last", "step"]
    step: int
    versions: Mapping[str, int]
    path: str
    bytes: int
    at: float = 0.0


def written(conn: Connection, taken: Taken, checkpoint: Checkpoint) -> None:
    """Record a checkpoint, tell the driver and finish the command, in one transaction. Raises TokenLost, EpochStale."""
    event = CheckpointWritten(
        label=checkpoint.label, step=checkpoint.step, versions=dict(checkpoint.versions), path=checkpoint.path,
        bytes=checkpoint.bytes,
    )  # fmt: skip
    with conn.transaction():
        guard(conn, taken)
        conn.execute(
            """
            INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes)
            VALUES (%s, %s, %s, %s::jsonb, %s, %s)
            ON CONFLICT (run_id, label, step) DO UPDATE
            SET versions = excluded.versions, path = excluded.path, bytes = excluded.bytes, at = clock_timestamp()
            """,
            [
                taken.run_id, checkpoint.label, checkpoint.step, orjson.dumps(dict(checkpoint.versions)).decode(),
                checkpoint.path, checkpoint.bytes,
            ],
        )  # fmt: skip
        put_event(conn, taken.run_id, f"ckpt:{taken.no}", event)
        finish(conn, taken)


def of_run(conn: Connection, run_id: int) -> list[Checkpoint]:
    """List a run's checkpoints, newest first."""
    rows = conn.execute(
        """
        SELECT label, step, versions::text, path, bytes, extract(epoch FROM at)::float8 FROM store.checkpoint
        WHERE run_id = %s ORDER BY at DESC
        """,
        [run_id],
    ).fetchall()
    return [
        Checkpoint(label, step, orjson.loads(versions), path, size, at)
        for label, step, versions, path, size, at in rows
    ]
