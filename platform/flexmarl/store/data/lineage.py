"""Where policies of a run come from that begin with another run's weights.

Invariants: a policy's origin is written with its run and never changes. Until the policy is bound it counts as a reader
of what it names; bound, its version 0 is a content of its own run and the origin is history. Its bytes are read only
while the right to them was found lately: the control plane notes it, `readable` checks it on the host that reads.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.store.errors import Refused
from flexmarl.store.node_operations import anyone, for_nodes, run_with_work

GRANT_S = 60
"""A right that was found may be used for so long; the control plane looks again every few seconds."""


@dataclass(frozen=True, slots=True)
class VersionOrigin:
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


def put(conn: Connection, run_id: int, origins: Iterable[VersionOrigin]) -> None:
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


def origins(conn: Connection, run_id: int) -> dict[str, VersionOrigin]:
    """Read where a run's policies come from: policy -> origin."""
    rows = conn.execute(
        f"SELECT {_COLUMNS} FROM store.lineage WHERE run_id = %s ORDER BY policy".encode(), [run_id]
    ).fetchall()
    return {row[0]: VersionOrigin(*row) for row in rows}


@for_nodes(run_with_work("run_id"))
def readable(conn: Connection, run_id: int, policy: str) -> VersionOrigin | None:
    """Read what a policy may begin with now, None for one with weights of its own. Raises Refused without the right."""
    origin = origins(conn, run_id).get(policy)
    if origin is None:
        return None
    row = conn.execute(
        "SELECT revoked_at IS NOT NULL, granted_at > clock_timestamp() - make_interval(secs => %s) "
        "FROM store.lineage WHERE run_id = %s AND policy = %s",
        [GRANT_S, run_id, policy],
    ).fetchone()
    assert row is not None
    revoked, fresh = row
    if revoked:
        text = f"the owner of this run may not read the run any more whose weights {policy} begins with"
        raise Refused("origin_forbidden", f"{text}; ask for access to it and clone this run, or name other weights")
    if not fresh:
        text = f"whether the weights that {policy} begins with may be read was not checked lately"
        raise Refused("origin_unchecked", f"{text}; start a driver")
    return origin


def unbound(conn: Connection) -> list[tuple[int, int]]:
    """List started runs whose policies still wait for another run's weights: (run, run that they come from)."""
    return conn.execute(
        """
        SELECT DISTINCT l.run_id, l.from_run FROM store.lineage l JOIN store.run_state r USING (run_id)
        WHERE l.bound_at IS NULL AND r.finished_at IS NULL AND r.status <> 'draft'
        """
    ).fetchall()


def waits_for(conn: Connection, run_id: int, from_run: int) -> bool:
    """Tell whether a run has yet to read another run's weights."""
    row = conn.execute(
        "SELECT 1 FROM store.lineage WHERE run_id = %s AND from_run = %s AND bound_at IS NULL LIMIT 1",
        [run_id, from_run],
    ).fetchone()
    return row is not None


def grant(conn: Connection, run_id: int, from_run: int, granted: bool) -> None:
    """Note whether a run's owner may read the run that its weights come from."""
    conn.execute(
        """
        UPDATE store.lineage SET granted_at = CASE WHEN %(granted)s THEN clock_timestamp() ELSE granted_at END,
          revoked_at = CASE WHEN %(granted)s THEN NULL ELSE coalesce(revoked_at, clock_timestamp()) END
        WHERE run_id = %(run)s AND from_run = %(origin)s AND bound_at IS NULL
        """,
        {"granted": granted, "run": run_id, "origin": from_run},
    )


def copies(conn: Connection, run_id: int) -> list[tuple[int, VersionOrigin]]:
    """List what was made from a run's versions: number of the new run, and what it took."""
    rows = conn.execute(
        f"SELECT run_id, {_COLUMNS} FROM store.lineage WHERE from_run = %s ORDER BY run_id, policy".encode(), [run_id]
    ).fetchall()
    return [(row[0], VersionOrigin(*row[1:])) for row in rows]


def bound(conn: Connection, run_id: int, policy: str) -> None:
    """Note that a policy's version 0 is stored for its own run."""
    conn.execute(
        "UPDATE store.lineage SET bound_at = clock_timestamp() WHERE run_id = %s AND policy = %s AND bound_at IS NULL",
        [run_id, policy],
    )


@for_nodes(anyone)
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
