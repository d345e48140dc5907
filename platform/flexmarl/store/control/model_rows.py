"""Models that runs may name: who imports one, how far it is, and which contents a node is to hold.

Invariants: an import belongs to the node that took it last; every later write names that take and does nothing once
another node took it or somebody cancelled it. A row that is done has a digest and never another one. What is made of a
run's checkpoint is imported by the node that has the checkpoint, only while the right to read that run was found
lately, and keeps the checkpoint until it has ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg import Connection

from flexmarl.store.node_operations import for_nodes, own_node

MOST_TAKES = 3
ELSEWHERE_S = 30.0
"""So long an import waits for a node that may read its source; then any node says that it may not."""
GRANT_S = 60
"""A right that was found may be used for so long."""
FORBIDDEN = "Its owner may not read the run any more that the checkpoint is of, or the run was deleted."
GAVE_UP = "The import process exited {takes} times without an error message, most likely out of memory."


@dataclass(frozen=True, slots=True)
class Import:
    """An import as the node that took it knows it."""

    id: UUID
    takes: int
    source: Mapping[str, Any]
    from_run: int | None = None
    """Number of the run whose checkpoint it is."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An import that has yet to read a run's checkpoint."""

    id: UUID
    owner_id: str
    from_run: int


def create(
    conn: Connection,
    model: UUID,
    project: str,
    name: str,
    source: Mapping[str, Any],
    owner: tuple[str, str],
    origin: tuple[int, int] | None = None,
) -> int:
    """Ask for an import, as the next revision of its name; return the revision.

    `owner` is a name and an account, `origin` the number of a run that they may read and the step of its checkpoint.
    """
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"model {project}/{name}"])
    row = conn.execute(
        """
        INSERT INTO store.model (id, project, name, revision, source, owner, owner_id, from_run, from_step, granted_at)
        SELECT %(id)s, %(project)s, %(name)s, coalesce(max(revision), 0) + 1, %(source)s, %(owner)s,
          %(account)s, %(run)s::bigint, %(step)s::int, CASE WHEN %(run)s::bigint IS NOT NULL THEN clock_timestamp() END
        FROM store.model WHERE project = %(project)s AND name = %(name)s RETURNING revision
        """,
        {
            "id": model,
            "project": project,
            "name": name,
            "source": _json(source),
            "owner": owner[0],
            "account": owner[1],
            "run": origin[0] if origin else None,
            "step": origin[1] if origin else None,
        },
    ).fetchone()
    assert row is not None
    return int(row[0])


def take(
    conn: Connection, node: str, lease_s: float, roots: Sequence[str] = (), unable: Sequence[str] = ()
) -> Import | None:
    """Take the import that waits longest, or one whose node went away, of those that this node can do; None when there
    is none. `roots` are the folders below which the node may read models: others get one that lies elsewhere first, and
    one of a type of `unable`."""
    with conn.transaction():
        row = conn.execute(
            """
            SELECT id, takes, source, from_run FROM store.model m
            WHERE (state = 'queued' OR state = 'running' AND lease_until < clock_timestamp()) AND (from_run IS NULL
              OR granted_at > clock_timestamp() - make_interval(secs => %s) AND EXISTS (
                SELECT 1 FROM store.checkpoint c WHERE c.run_id = m.from_run AND c.step = m.from_step AND c.node = %s))
              AND (source ->> 'type' <> ALL (%s::text[]) OR created_at < clock_timestamp() - make_interval(secs => %s))
              AND (source ->> 'type' <> 'folder' OR created_at < clock_timestamp() - make_interval(secs => %s)
                OR EXISTS (SELECT 1 FROM unnest(%s::text[]) r
                  WHERE source ->> 'path' = r OR starts_with(source ->> 'path', r || '/')))
            ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
            """,
            [GRANT_S, node, list(unable), ELSEWHERE_S, ELSEWHERE_S, [root.rstrip("/") for root in roots]],
        ).fetchone()
        if row is None:
            return None
        taken = Import(row[0], row[1] + 1, row[2], row[3])
        if row[1] >= MOST_TAKES:
            failed(conn, Import(row[0], row[1], row[2]), "gave_up", GAVE_UP.format(takes=row[1]))
            return None
        conn.execute(
            """
            UPDATE store.model SET state = 'running', takes = %s, node = %s, now_at = '',
              started_at = coalesce(started_at, clock_timestamp()),
              lease_until = clock_timestamp() + make_interval(secs => %s) WHERE id = %s
            """,
            [taken.takes, node, lease_s, taken.id],
        )
    return taken


def waiting(conn: Connection) -> list[Waiting]:
    """List imports that have yet to read a run's checkpoint, or are reading it."""
    rows = conn.execute(
        "SELECT id, owner_id, from_run FROM store.model WHERE state IN ('queued', 'running') AND from_run IS NOT NULL"
    ).fetchall()
    return [Waiting(*row) for row in rows]


def grant(conn: Connection, model: UUID) -> None:
    """Note that whoever asked for an import may read the run that it is made of."""
    conn.execute("UPDATE store.model SET granted_at = clock_timestamp() WHERE id = %s", [model])


def forbid(conn: Connection, model: UUID) -> None:
    """End an import whose owner may not read the run any more; its node stops."""
    conn.execute(
        """
        UPDATE store.model SET state = 'failed', reason = 'origin_forbidden', reason_text = %s, now_at = '',
          lease_until = NULL, finished_at = clock_timestamp(), updated_at = clock_timestamp(), version = version + 1
        WHERE id = %s AND state IN ('queued', 'running')
        """,
        [FORBIDDEN, model],
    )


def largest_memory(conn: Connection) -> int:
    """Return the memory of the host that has most, in bytes; 0 where none is known."""
    row = conn.execute("SELECT coalesce(max((facts ->> 'memory_bytes')::bigint), 0) FROM store.node").fetchone()
    return int(row[0]) if row else 0


def goes_on(conn: Connection, taken: Import, now_at: str, lease_s: float) -> bool:
    """Renew an import and say what is being done; False when nobody wants the rest."""
    done = conn.execute(
        "UPDATE store.model SET now_at = %s, lease_until = clock_timestamp() + make_interval(secs => %s) "
        "WHERE id = %s AND takes = %s AND state = 'running'",
        [now_at, lease_s, taken.id, taken.takes],
    )
    return done.rowcount == 1


def done(conn: Connection, taken: Import, digest: str, facts: Mapping[str, Any]) -> bool:
    """Write what was imported; False when nobody wants it any more."""
    return _end(conn, taken, "done", "", "", digest, facts)


def failed(conn: Connection, taken: Import, reason: str, text: str) -> bool:
    """Write why an import failed."""
    return _end(conn, taken, "failed", reason, text, "", {})


def _end(
    conn: Connection, taken: Import, state: str, reason: str, text: str, digest: str, facts: Mapping[str, Any]
) -> bool:
    ended = conn.execute(
        """
        UPDATE store.model SET state = %s, reason = %s, reason_text = %s, digest = %s, facts = %s, now_at = '',
          lease_until = NULL, finished_at = clock_timestamp(), updated_at = clock_timestamp(), version = version + 1
        WHERE id = %s AND takes = %s AND state IN ('queued', 'running')
        """,
        [state, reason, text, digest, _json(facts), taken.id, taken.takes],
    )
    return ended.rowcount == 1


@for_nodes(own_node("node"))
def held_by(conn: Connection, node: str) -> set[str]:
    """Return the digests of what a node is to hold: what it imported, and what runs on its devices name."""
    own = conn.execute("SELECT digest FROM store.model WHERE node = %s AND state = 'done'", [node]).fetchall()
    named = {source.get("digest") for source in used_by(conn, node)}
    return {digest for digest in {*(row[0] for row in own), *named} if digest}


@for_nodes(own_node("node"))
def used_by(conn: Connection, node: str) -> list[Mapping[str, Any]]:
    """Return what the policies of runs on a node's devices are of: sources as specifications write them."""
    rows = conn.execute(
        """
        SELECT DISTINCT coalesce(p.value #> '{model,source}', p.value -> 'model')
        FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.run_state r ON r.run_id = l.run_id,
          jsonb_each(r.spec -> 'policies') p
        WHERE d.node = %s AND l.state <> 'ended'
        """,
        [node],
    ).fetchall()
    return [source for (source,) in rows if source]


def runs_of(conn: Connection, model: UUID) -> list[int]:
    """Return the numbers of the runs with a policy that is of a model, or that began with a checkpoint of one."""
    rows = conn.execute(
        """
        SELECT r.run_id FROM store.run_state r, store.model m
        WHERE m.id = %s AND EXISTS (SELECT FROM jsonb_each(r.spec -> 'policies') p
          WHERE coalesce(p.value #> '{model,source}', p.value -> 'model') @> jsonb_build_object(
            'type', 'registered', 'project', m.project, 'name', m.name, 'version', m.revision))
        """,
        [model],
    ).fetchall()
    return [number for (number,) in rows]


def contents(conn: Connection) -> set[str]:
    """Return the digests of all models."""
    return {digest for (digest,) in conn.execute("SELECT digest FROM store.model WHERE digest <> ''").fetchall()}


def _json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value).decode()
