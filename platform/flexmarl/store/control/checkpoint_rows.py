"""Who keeps a checkpoint, and what becomes of one that nobody keeps.

Invariants: a checkpoint leaves only when no rule keeps it, nobody pinned it, nobody reads it, and neither a copy nor a
model still waits for it, all of it decided by one statement on its row; from then on it is `removing` and can be
neither pinned nor copied. Its node removes the folder and says so; a node that dies between them finds the row again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson
from psycopg import Connection

from flexmarl.contracts.commands import KeepCheckpoints
from flexmarl.store.node_operations import for_nodes, own_checkpoint, own_node
from flexmarl.store.server_paths import without_paths

READ_S = 600.0
"""How long one announcement of a reader holds a folder; a reader that needs longer announces itself again."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint as its node knows it."""

    run_id: int
    step: int
    path: str
    state: str
    parts: Mapping[str, Mapping[str, object]]

    @property
    def policies(self) -> list[str]:
        return sorted(self.parts)


def keep_checkpoints(conn: Connection, run_id: int, command: KeepCheckpoints) -> None:
    """Write what the rules keep; the rest up to the newest that they looked at is let go."""
    kept = command.kept
    conn.execute(
        """
        WITH kept AS (
          SELECT * FROM unnest(%(steps)b::int[], %(whys)b::text[], %(solved)b::float8[], %(team)b::float8[])
            AS k(step, why, solved, team_score)
        )
        UPDATE store.checkpoint c SET kept_by = coalesce(string_to_array(k.why, ','), '{}'),
          solved = coalesce(k.solved, c.solved), team_score = coalesce(k.team_score, c.team_score)
        FROM store.checkpoint o LEFT JOIN kept k ON k.step = o.step
        WHERE o.run_id = %(run)s AND o.step <= %(newest)s AND o.node <> ''
          AND c.run_id = o.run_id AND c.step = o.step
        """,
        {
            "run": run_id,
            "newest": command.newest,
            "steps": [one.step for one in kept],
            "whys": [",".join(one.why) for one in kept],
            "solved": [None if one.score is None else one.score[0] for one in kept],
            "team": [None if one.score is None else one.score[1] for one in kept],
        },
    )


def pin(conn: Connection, run_id: int, step: int, by: str | None) -> bool:
    """Keep a checkpoint by somebody's wish, or (None) no longer; False when it is gone or going."""
    cursor = conn.execute(
        "UPDATE store.checkpoint SET pinned_by = %(by)s, "
        "pinned_at = CASE WHEN %(by)s = '' THEN NULL ELSE coalesce(pinned_at, clock_timestamp()) END "
        "WHERE run_id = %(run)s AND step = %(step)s AND state NOT IN ('removing', 'removed')",
        {"run": run_id, "step": step, "by": by or ""},
    )
    return cursor.rowcount == 1


def read_on(conn: Connection, run_id: int, step: int) -> bool:
    """Hold the folder for a reader a while longer; False when it is gone or going."""
    cursor = conn.execute(
        "UPDATE store.checkpoint SET read_until = clock_timestamp() + make_interval(secs => %s) "
        "WHERE run_id = %s AND step = %s AND state NOT IN ('removing', 'removed')",
        [READ_S, run_id, step],
    )
    return cursor.rowcount == 1


@for_nodes(own_node("node"))
def leaving(conn: Connection, node: str) -> list[Folder]:
    """Mark what nobody keeps as on its way out, and list it with what was marked before."""
    rows = conn.execute(
        """
        UPDATE store.checkpoint c SET state = 'removing', state_text = ''
        WHERE c.node = %s AND c.state <> 'removed' AND (c.state = 'removing' OR (
          c.kept_by = '{}' AND c.pinned_at IS NULL AND coalesce(c.read_until < clock_timestamp(), true)
          AND NOT EXISTS (
            SELECT 1 FROM store.lineage l
            WHERE l.from_run = c.run_id AND l.from_step = c.step AND l.checkpoint AND l.bound_at IS NULL)
          AND NOT EXISTS (
            SELECT 1 FROM store.model m
            WHERE m.from_run = c.run_id AND m.from_step = c.step AND m.state IN ('queued', 'running'))))
        RETURNING c.run_id, c.step, c.path, c.state, c.parts::text
        """,
        [node],
    ).fetchall()
    return [_folder(*row) for row in rows]


@for_nodes(own_node("node"))
def on_node(conn: Connection, node: str) -> list[Folder]:
    """List what should lie on a node's disk."""
    rows = conn.execute(
        "SELECT run_id, step, path, state, parts::text FROM store.checkpoint "
        "WHERE node = %s AND state IN ('whole', 'missing', 'damaged')",
        [node],
    ).fetchall()
    return [_folder(*row) for row in rows]


@for_nodes(own_node("node"))
def kept_elsewhere(conn: Connection, node: str, folders: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return those of some checkpoints (run, step) that another node keeps."""
    return conn.execute(
        "SELECT c.run_id, c.step FROM store.checkpoint c "
        "JOIN unnest(%s::bigint[], %s::int[]) AS f(run_id, step) ON f.run_id = c.run_id AND f.step = c.step "
        "WHERE c.node NOT IN (%s, '')",
        [[run for run, _ in folders], [step for _, step in folders], node],
    ).fetchall()


@for_nodes(own_checkpoint("folder"))
def found(conn: Connection, folder: Folder, state: str, text: str) -> None:
    """Note what a node found in place of what it looked for; a checkpoint that leaves is not spoken of."""
    conn.execute(
        "UPDATE store.checkpoint SET state = %s, state_text = %s "
        "WHERE run_id = %s AND step = %s AND state IN ('whole', 'missing', 'damaged')",
        [state, without_paths(text), folder.run_id, folder.step],
    )


@for_nodes(own_checkpoint("folder"))
def gone(conn: Connection, folder: Folder) -> None:
    """Note that a folder is removed; the row stays and says so."""
    conn.execute(
        "UPDATE store.checkpoint SET state = 'removed', state_text = 'no rule keeps it', bytes = 0 "
        "WHERE run_id = %s AND step = %s AND state = 'removing'",
        [folder.run_id, folder.step],
    )


def _folder(run_id: int, step: int, path: str, state: str, parts: str) -> Folder:
    return Folder(run_id, step, path, state, orjson.loads(parts))
