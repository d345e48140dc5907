"""Written checkpoints: a consistent cut over all policies, as a folder on a node's disk.

Invariant: the row and the event appear together, after the files are durable. There is one row per step, whichever
rules wanted it; who keeps it is `checkpoint_rows`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import orjson
from psycopg import Connection

from flexmarl.contracts.events import CheckpointWritten
from flexmarl.store.control.commands import Taken, finish, guard
from flexmarl.store.control.inbox import put_event
from flexmarl.store.errors import Refused
from flexmarl.store.node_operations import for_nodes, taken_command


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    label: Literal["best", "last", "step"]
    step: int
    versions: Mapping[str, int]
    path: str
    bytes: int
    parts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Policy -> version, digest of its weights, digest of its training state (empty: none was there)."""
    at: float = 0.0
    kept_on: str = ""
    """Node whose disk the folder is on; empty: that of the command's lease."""


@for_nodes(taken_command("taken"))
def written(conn: Connection, taken: Taken, checkpoint: CheckpointRow) -> None:
    """Record a checkpoint, tell the driver and finish the command, in one transaction. Raises TokenLost, EpochStale."""
    lease_id = getattr(taken.command, "lease_id", 0)
    event = CheckpointWritten(
        label=checkpoint.label, step=checkpoint.step, versions=dict(checkpoint.versions), bytes=checkpoint.bytes,
    )  # fmt: skip
    if checkpoint.kept_on and not _may_keep(conn, taken.run_id, checkpoint):
        raise Refused(
            "not_kept", f"{checkpoint.kept_on} keeps no checkpoint of run {taken.run_id} at {checkpoint.path}"
        )
    with conn.transaction():
        guard(conn, taken)
        cursor = conn.execute(
            """
            INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes, parts, node)
            SELECT %s, %s, %s, %s::jsonb, %s, %s, %s::jsonb, coalesce(nullif(%s, ''), (SELECT d.node
              FROM store.lease l JOIN store.device d ON d.id = l.device_id WHERE l.id = %s), '')
            ON CONFLICT (run_id, step) DO UPDATE
            SET versions = excluded.versions, path = excluded.path, bytes = excluded.bytes, at = clock_timestamp(),
              parts = excluded.parts, node = excluded.node, state = 'whole', state_text = '',
              label = CASE WHEN store.checkpoint.state = 'whole' THEN store.checkpoint.label ELSE excluded.label END,
              kept_by = CASE WHEN store.checkpoint.state = 'whole' THEN store.checkpoint.kept_by || '{new}'
                             ELSE '{new}' END
            WHERE store.checkpoint.state <> 'removing'
            """,
            [
                taken.run_id, checkpoint.label, checkpoint.step, orjson.dumps(dict(checkpoint.versions)).decode(),
                checkpoint.path, checkpoint.bytes, orjson.dumps(dict(checkpoint.parts)).decode(), checkpoint.kept_on,
                lease_id,
            ],
        )  # fmt: skip
        if cursor.rowcount != 1:
            raise Refused("checkpoint_leaving", f"the checkpoint after step {checkpoint.step} is being removed")
        put_event(conn, taken.run_id, f"ckpt:{taken.no}", event)
        finish(conn, taken)


def _may_keep(conn: Connection, run_id: int, checkpoint: CheckpointRow) -> bool:
    """Tell whether others reach the node that is said to keep a folder, and it lies where such folders lie."""
    row = conn.execute("SELECT 1 FROM store.node WHERE name = %s AND address <> ''", [checkpoint.kept_on]).fetchone()
    return row is not None and checkpoint.path.endswith(f"/checkpoints/run-{run_id}/step-{checkpoint.step}")


def of_run(conn: Connection, run_id: int) -> list[CheckpointRow]:
    """List a run's checkpoints, newest first."""
    rows = conn.execute(
        """
        SELECT label, step, versions::text, path, bytes, parts::text, extract(epoch FROM at)::float8
        FROM store.checkpoint
        WHERE run_id = %s ORDER BY at DESC
        """,
        [run_id],
    ).fetchall()
    return [
        CheckpointRow(label, step, orjson.loads(versions), path, size, orjson.loads(parts), at)
        for label, step, versions, path, size, parts, at in rows
    ]
