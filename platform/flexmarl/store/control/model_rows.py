"""Models that runs may name: who imports one, how far it is, and which contents a node is to hold.

Invariants: an import belongs to the node that took it last; every later write names that take and does nothing once
another node took it or somebody cancelled it. A row that is done has a digest and never another one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg import Connection

MOST_TAKES = 3
GAVE_UP = "The import ended {takes} times without a word, most likely for lack of memory."


@dataclass(frozen=True, slots=True)
class Import:
    """An import as the node that took it knows it."""

    id: UUID
    takes: int
    source: Mapping[str, Any]


def create(
    conn: Connection, model: UUID, project: str, name: str, source: Mapping[str, Any], owner: tuple[str, str]
) -> int:
    """Ask for an import, as the next revision of its name; return the revision. `owner` is a name and an account."""
    conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"model {project}/{name}"])
    row = conn.execute(
        """
        INSERT INTO store.model (id, project, name, revision, source, owner, owner_id)
        SELECT %(id)s, %(project)s, %(name)s, coalesce(max(revision), 0) + 1, %(source)s, %(owner)s,
          %(account)s
        FROM store.model WHERE project = %(project)s AND name = %(name)s RETURNING revision
        """,
        {
            "id": model,
            "project": project,
            "name": name,
            "source": _json(source),
            "owner": owner[0],
            "account": owner[1],
        },
    ).fetchone()
    assert row is not None
    return int(row[0])


def take(conn: Connection, node: str, lease_s: float) -> Import | None:
    """Take the import that waits longest, or one whose node went away; None when there is none."""
    with conn.transaction():
        row = conn.execute(
            """
            SELECT id, takes, source FROM store.model
            WHERE state = 'queued' OR state = 'running' AND lease_until < clock_timestamp()
            ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
            """
        ).fetchone()
        if row is None:
            return None
        taken = Import(row[0], row[1] + 1, row[2])
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


def held_by(conn: Connection, node: str) -> set[str]:
    """Return the digests of what a node is to hold: what it imported, and what runs on its devices name."""
    rows = conn.execute(
        """
        SELECT digest FROM store.model WHERE node = %(node)s AND state = 'done'
        UNION
        SELECT coalesce(p.value #>> '{model,source,digest}', p.value #>> '{model,digest}')
        FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.run_state r ON r.run_id = l.run_id,
          jsonb_each(r.spec -> 'policies') p
        WHERE d.node = %(node)s AND l.state <> 'ended'
        """,
        {"node": node},
    ).fetchall()
    return {digest for (digest,) in rows if digest}


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
