"""Datasets of a hub that people ask for: who brings one, how far it is, and the parts of what was brought.

Invariants: a fetch belongs to the node that took it last; every later write names that take and does nothing once
another node took it or somebody cancelled it. One that is done with an archive has all its parts, in order from 0, and
its digest; nothing of it changes any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg import Connection

from flexmarl.store.server_paths import without_paths

MOST_TAKES = 3
GAVE_UP = "The fetch was begun {takes} times, and each time its node went away. Try it again."
MINE = "id = %(id)s AND takes = %(takes)s AND state = 'running'"


@dataclass(frozen=True, slots=True)
class TakenFetch:
    """A fetch as the node that took it knows it."""

    id: UUID
    takes: int
    source: Mapping[str, Any]
    most_bytes: int


def create(
    conn: Connection, fetch: UUID, project: str, source: Mapping[str, Any], most_bytes: int, owner: tuple[str, str]
) -> None:
    """Ask for a listing or files. `owner` is a name and an account."""
    conn.execute(
        "INSERT INTO store.dataset_fetch (id, project, source, most_bytes, owner, owner_id) "
        "VALUES (%s, %s, %s, %s, %s, %s)",
        [fetch, project, _json(source), most_bytes, *owner],
    )


def take(conn: Connection, node: str, lease_s: float) -> TakenFetch | None:
    """Take the fetch that waits longest, or one whose node went away; None when there is none."""
    with conn.transaction():
        row = conn.execute(
            "SELECT id, takes, source, most_bytes FROM store.dataset_fetch WHERE state = 'queued' "
            "OR state = 'running' AND lease_until < clock_timestamp() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
        ).fetchone()
        if row is None:
            return None
        if row[1] >= MOST_TAKES:
            failed(conn, TakenFetch(*row), "gave_up", GAVE_UP.format(takes=row[1]))
            return None
        taken = TakenFetch(row[0], row[1] + 1, row[2], row[3])
        conn.execute("DELETE FROM store.dataset_fetch_part WHERE fetch_id = %s", [taken.id])
        conn.execute(
            "UPDATE store.dataset_fetch SET state = 'running', takes = %s, node = %s, now_at = '', done_bytes = 0, "
            "started_at = coalesce(started_at, clock_timestamp()), "
            "lease_until = clock_timestamp() + make_interval(secs => %s) WHERE id = %s",
            [taken.takes, node, lease_s, taken.id],
        )
    return taken


def goes_on(conn: Connection, taken: TakenFetch, now: tuple[str, int, int], lease_s: float) -> bool:
    """Renew a fetch and say what is being done, bytes that are here, and of how many; False when nobody wants it."""
    renewed = conn.execute(
        "UPDATE store.dataset_fetch SET now_at = %(now)s, done_bytes = %(done)s, bytes = %(bytes)s, "
        f"lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s) WHERE {MINE}",
        {"now": now[0], "done": now[1], "bytes": now[2], "lease_s": lease_s, **_mine(taken)},
    )
    return renewed.rowcount == 1


def put_part(conn: Connection, taken: TakenFetch, place: int, body: bytes, lease_s: float) -> bool:
    """Keep a part of the archive and renew the fetch; False when nobody wants it any more."""
    with conn.transaction():
        mine = conn.execute(
            "UPDATE store.dataset_fetch SET lease_until = clock_timestamp() + make_interval(secs => %(lease_s)s) "
            f"WHERE {MINE}",
            {"lease_s": lease_s, **_mine(taken)},
        )
        if mine.rowcount != 1:
            return False
        conn.execute(
            "INSERT INTO store.dataset_fetch_part (fetch_id, place, body) VALUES (%s, %s, %s)", [taken.id, place, body]
        )
    return True


def done(conn: Connection, taken: TakenFetch, found: Mapping[str, Any], digest: str = "", size: int = 0) -> bool:
    """Write what was found; `digest` and `size` are the archive's where there is one. False when nobody wants it."""
    return _end(conn, taken, "done", ("", ""), (found, digest, size))


def failed(conn: Connection, taken: TakenFetch, reason: str, text: str) -> bool:
    """Write why a fetch failed; its parts go."""
    with conn.transaction():
        ended = _end(conn, taken, "failed", (reason, without_paths(text)), ({}, "", 0))
        if ended:
            drop_parts(conn, taken.id)
    return ended


def drop_parts(conn: Connection, fetch: UUID) -> None:
    """Delete what was brought of a fetch that ended without an archive."""
    conn.execute("DELETE FROM store.dataset_fetch_part WHERE fetch_id = %s", [fetch])


def part(conn: Connection, fetch: UUID, place: int) -> bytes | None:
    """Return a part of an archive, None after the last one."""
    row = conn.execute(
        "SELECT body FROM store.dataset_fetch_part WHERE fetch_id = %s AND place = %s", [fetch, place]
    ).fetchone()
    return None if row is None else bytes(row[0])


def _end(
    conn: Connection, taken: TakenFetch, state: str, why: tuple[str, str], result: tuple[Mapping[str, Any], str, int]
) -> bool:
    found, digest, size = result
    ended = conn.execute(
        """
        UPDATE store.dataset_fetch SET state = %(state)s, reason = %(reason)s, reason_text = %(text)s,
          found = %(found)s, digest = %(digest)s, bytes = %(size)s, done_bytes = %(size)s, now_at = '',
          lease_until = NULL, finished_at = clock_timestamp(), updated_at = clock_timestamp(), version = version + 1
        WHERE id = %(id)s AND takes = %(takes)s AND state = 'running'
        """,
        {
            "state": state, "reason": why[0], "text": why[1], "found": _json(found), "digest": digest, "size": size,
            **_mine(taken),
        },
    )  # fmt: skip
    return ended.rowcount == 1


def _mine(taken: TakenFetch) -> dict[str, Any]:
    return {"id": taken.id, "takes": taken.takes}


def _json(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value).decode()
