"""Where policies of a run come from that begin with another run's weights.

Invariants: a policy's origin is written with its run and never changes. Until the policy is bound it counts as a reader
of what it names; bound, its version 0 is a content of its own run and the origin is history.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import Connection


@dataclass(frozen=True, slots=True)
class Origin:
    policy: str
    from_run: int
    from_policy: str
    from_version: int
    from_step: int
    checkpoint: bool
    """It is the checkpoint after that step; otherwise the newest vector there was."""
    digest: str
    state: str = ""
    """Digest of the training state that is taken over; empty: a fresh optimizer."""


_COLUMNS = "policy, from_run, from_policy, from_version, from_step, checkpoint, digest, state"


def put(conn: Connection, run_id: int, origins: Iterable[Origin]) -> None:
    """Write where a new run's policies come from."""
    for one in origins:
        conn.execute(
            f"INSERT INTO store.lineage (run_id, {_COLUMNS}) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)".encode(),
            [
                run_id, one.policy, one.from_run, one.from_policy, one.from_version, one.from_step, one.checkpoint,
                one.digest, one.state,
            ],
        )  # fmt: skip


def origins(conn: Connection, run_id: int) -> dict[str, Origin]:
    """Read where a run's policies come from: policy -> origin."""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM store.lineage WHERE run_id = %s ORDER BY policy".encode(), [run_id]
    ).fetchall()
    return {row[0]: Origin(*row) for row in rows}


def copies(conn: Connection, run_id: int) -> list[tuple[int, Origin]]:
    """List what was made from a run's versions: number of the new run, and what it took."""
    rows = conn.execute(
        f"SELECT run_id, {_COLUMNS} FROM store.lineage WHERE from_run = %s ORDER BY run_id, policy".encode(), [run_id]
    ).fetchall()
    return [(row[0], Origin(*row[1:])) for row in rows]


def bound(conn: Connection, run_id: int, policy: str) -> None:
    """Note that a policy's version 0 is stored for its own run."""
    conn.execute(
        "UPDATE store.lineage SET bound_at = clock_timestamp() WHERE run_id = %s AND policy = %s AND bound_at IS NULL",
        [run_id, policy],
    )


def awaited(conn: Connection) -> dict[int, set[str]]:
    """Return what copies wait for that are not bound yet: run -> digests. A copy that ended waits for nothing."""
    rows = conn.execute(
        """
        SELECT l.run_id, l.digest, l.state FROM store.lineage l JOIN store.run_state r USING (run_id)
        WHERE l.bound_at IS NULL AND r.finished_at IS NULL
        """
    ).fetchall()
    found: dict[int, set[str]] = {}
    for run_id, *digests in rows:
        found.setdefault(run_id, set()).update(digest for digest in digests if digest)
    return found
