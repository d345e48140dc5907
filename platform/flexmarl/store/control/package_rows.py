"""Packages that runs may name: who builds one, how far it is, and what other hosts need to build the same.

Invariants: a build belongs to the node that took it last; every later write names that take and does nothing once
another node took it or somebody cancelled it. A package that is ready has a digest and never another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from psycopg import Connection

from flexmarl.contracts.status import TERMINAL
from flexmarl.store import storable
from flexmarl.store.node_operations import anyone, for_nodes
from flexmarl.store.server_paths import without_paths

MOST_TAKES = 3
MOST_LOG = 200_000
"""Characters of a log that are kept: the last ones."""
GAVE_UP = "The build process exited {takes} times without an error message, most likely out of memory."


@dataclass(frozen=True, slots=True)
class TakenBuild:
    """A build as the node that took it knows it."""

    id: UUID
    takes: int
    name: str
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BuiltPackage:
    """What a host needs to build a package once more."""

    name: str
    source: Mapping[str, Any]
    digest: str
    lock: Sequence[Mapping[str, str]]


def create(
    conn: Connection,
    package: UUID,
    project: str,
    named: tuple[str, str],
    source: Mapping[str, Any],
    owner: tuple[str, str],
) -> None:
    """Ask for a build. `named` is distribution and version, `owner` a name and an account."""
    conn.execute(
        "INSERT INTO store.package (id, project, name, release, source, owner, owner_id) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s)",
        [package, project, *named, _json(source), *owner],
    )


def put_file(conn: Connection, digest: str, body: bytes) -> None:
    """Keep an uploaded file; one that is there already stays."""
    conn.execute(
        "INSERT INTO store.package_file (digest, body) VALUES (%s, %s) "
        "ON CONFLICT (digest) DO UPDATE SET created_at = clock_timestamp()",
        [digest, body],
    )


@for_nodes(anyone)
def file(conn: Connection, digest: str) -> bytes | None:
    """Return an uploaded file, None where it is not kept."""
    row = conn.execute("SELECT body FROM store.package_file WHERE digest = %s", [digest]).fetchone()
    return None if row is None else bytes(row[0])


def has_file(conn: Connection, digest: str) -> bool:
    """Tell whether an uploaded file is kept."""
    return conn.execute("SELECT 1 FROM store.package_file WHERE digest = %s", [digest]).fetchone() is not None


def drop_unused(conn: Connection, hours: float) -> int:
    """Delete files of which no package was made in time."""
    return conn.execute(
        "DELETE FROM store.package_file f WHERE created_at < clock_timestamp() - make_interval(secs => %s) "
        "AND NOT EXISTS (SELECT 1 FROM store.package p WHERE p.source ->> 'digest' = f.digest)",
        [hours * 3600],
    ).rowcount


def take(conn: Connection, node: str, lease_s: float) -> TakenBuild | None:
    """Take the build that waits longest, or one whose node went away; None when there is none."""
    with conn.transaction():
        row = conn.execute(
            "SELECT id, takes, name, source FROM store.package WHERE state = 'queued' "
            "OR state = 'building' AND lease_until < clock_timestamp() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED"
        ).fetchone()
        if row is None:
            return None
        if row[1] >= MOST_TAKES:
            failed(conn, TakenBuild(*row), "gave_up", GAVE_UP.format(takes=row[1]), "")
            return None
        taken = TakenBuild(row[0], row[1] + 1, row[2], row[3])
        conn.execute(
            "UPDATE store.package SET state = 'building', takes = %s, node = %s, now_at = '', "
            "started_at = coalesce(started_at, clock_timestamp()), updated_at = clock_timestamp(), "
            "version = version + 1, lease_until = clock_timestamp() + make_interval(secs => %s) WHERE id = %s",
            [taken.takes, node, lease_s, taken.id],
        )
    return taken


def goes_on(conn: Connection, taken: TakenBuild, now_at: str, log: str, lease_s: float) -> bool:
    """Renew a build and say what is being done; False when nobody wants the rest."""
    done = conn.execute(
        "UPDATE store.package SET now_at = %s, log = %s, "
        "lease_until = clock_timestamp() + make_interval(secs => %s) "
        "WHERE id = %s AND takes = %s AND state = 'building'",
        [now_at, _kept(log), lease_s, taken.id, taken.takes],
    )
    return done.rowcount == 1


def ready(conn: Connection, taken: TakenBuild, built: Mapping[str, Any], log: str) -> bool:
    """Write what was built: digest, lock and manifest; False when nobody wants it any more."""
    return _end(conn, taken, "ready", ("", "", log), (built["digest"], built["lock"], built["manifest"]))


def failed(conn: Connection, taken: TakenBuild, reason: str, text: str, log: str) -> bool:
    """Write why a build failed."""
    return _end(conn, taken, "failed", (reason, text, log), ("", [], {}))


def _end(
    conn: Connection, taken: TakenBuild, state: str, said: tuple[str, str, str], built: tuple[str, Any, Any]
) -> bool:
    reason, text, log = said
    digest, lock, manifest = built
    ended = conn.execute(
        """
        UPDATE store.package SET state = %s, reason = %s, reason_text = %s, log = %s, digest = %s, lock = %s,
          manifest = %s, now_at = '', lease_until = NULL, finished_at = clock_timestamp(),
          updated_at = clock_timestamp(), version = version + 1
        WHERE id = %s AND takes = %s AND state IN ('queued', 'building')
        """,
        [state, reason, without_paths(text), _kept(log), digest, _json(lock), _json(manifest), taken.id, taken.takes],
    )
    return ended.rowcount == 1


@for_nodes(anyone)
def built(conn: Connection, package: UUID, digest: str) -> BuiltPackage | None:
    """Return what a host needs to build a package once more; None where there is no such build."""
    row = conn.execute(
        "SELECT name, source, digest, lock FROM store.package WHERE id = %s AND digest = %s AND digest <> ''",
        [package, digest],
    ).fetchone()
    return None if row is None else BuiltPackage(*row)


@for_nodes(anyone)
def builds_of_runs(conn: Connection) -> list[str]:
    """Return the digests of the builds that runs which have not ended name, in whatever part of their specification."""
    rows = conn.execute(
        "SELECT DISTINCT digest FROM store.run_state r, jsonb_path_query(r.spec, '$.**.pinned.digest') AS digest "
        "WHERE r.status <> ALL(%s)",
        [[status.value for status in TERMINAL]],
    ).fetchall()
    return [digest for (digest,) in rows if digest]


def _kept(log: str) -> str:
    """Members of the project read it: of a path of the host only its last name stays."""
    return without_paths(log[-MOST_LOG:].replace("\0", ""))


def _json(value: Any) -> str:
    return storable.json(orjson.dumps(value).decode())
