"""Log lines of runs: written in batches, read by cursor, the newest kept.

Invariants: `seq` grows in the order in which the lines of a run become visible, because writers of one run hold a lock
until they commit; so "behind seq n" misses nothing. No line waits for that lock longer than `LOCK_MS`: the batch fails
and its writer decides. Texts are cut to `TEXT_LIMIT`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import Connection

from flexmarl.store.node_operations import for_nodes, run_with_work

KEEP = 50_000
"""Newest lines of a run that stay."""
LOCK_MS = 1000
TEXT_LIMIT = 4000
FIELDS_LIMIT = 16_000
_LOCK = 0x4C4F47
_LONE = re.compile(r"\\ud[89a-f][0-9a-f]{2}", re.IGNORECASE)
"""Surrogates that JSON can write and PostgreSQL refuses."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """`at` in seconds since the epoch."""

    run_id: int
    at: float
    level: str
    component: str
    text: str
    agent: str = ""
    node: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredLine:
    seq: int
    at: float
    level: str
    component: str
    agent: str
    node: str
    text: str
    fields: dict[str, object]


@dataclass(frozen=True, slots=True)
class LogFilter:
    """None asks for everything. `pattern` is a POSIX regular expression, `text` plain words; both ignore case."""

    levels: Sequence[str] | None = None
    components: Sequence[str] | None = None
    agent: str | None = None
    node: str | None = None
    text: str | None = None
    pattern: str | None = None
    since: float | None = None
    until: float | None = None


@for_nodes(run_with_work("run_id"))
def put(conn: Connection, run_id: int, lines: Sequence[LogLine]) -> None:
    """Store lines of one run, in their order. Raises psycopg's errors; nothing is stored then."""
    if not lines:
        return
    with conn.transaction():
        conn.execute(f"SET LOCAL lock_timeout = {LOCK_MS}".encode())
        conn.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK, run_id % 2**31])
        conn.execute(
            """
            INSERT INTO store.log (run_id, at, level, component, agent, node, text, fields)
            SELECT %s, to_timestamp(l.at), l.level, l.component, l.agent, l.node, l.text, l.fields::jsonb
            FROM unnest(%s::float8[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
              WITH ORDINALITY AS l (at, level, component, agent, node, text, fields, ord) ORDER BY l.ord
            """,
            [
                run_id, [line.at for line in lines], [line.level for line in lines],
                [line.component for line in lines], [_clean(line.agent) for line in lines],
                [_clean(line.node) for line in lines], [_clean(line.text) for line in lines],
                [_json(line.fields) for line in lines],
            ],
        )  # fmt: skip


@for_nodes(run_with_work("run_id"))
def trim(conn: Connection, run_id: int, keep: int = KEEP) -> int:
    """Delete what lies behind the newest `keep` lines of a run; returns how many."""
    return conn.execute(
        """
        DELETE FROM store.log WHERE run_id = %(run)s AND seq <= (
          SELECT seq FROM store.log WHERE run_id = %(run)s ORDER BY seq DESC OFFSET %(keep)s LIMIT 1)
        """,
        {"run": run_id, "keep": keep},
    ).rowcount


def page(
    conn: Connection,
    run_id: int,
    wanted: LogFilter,
    limit: int,
    *,
    after: int | None = None,
    before: int | None = None,
) -> list[StoredLine]:
    """Read lines in their order: the first behind `after`, or the last before `before`, or the newest."""
    newest = after is None
    rows = conn.execute(
        f"""
        SELECT seq, extract(epoch FROM at)::float8, level, component, agent, node, text, fields FROM store.log
        WHERE run_id = %(run)s AND (%(after)s::bigint IS NULL OR seq > %(after)s)
          AND (%(before)s::bigint IS NULL OR seq < %(before)s)
          AND (%(levels)s::text[] IS NULL OR level = ANY(%(levels)s))
          AND (%(components)s::text[] IS NULL OR component = ANY(%(components)s))
          AND (%(agent)s::text IS NULL OR agent = %(agent)s) AND (%(node)s::text IS NULL OR node = %(node)s)
          AND (%(text)s::text IS NULL OR strpos(lower(text || ' ' || fields::text), lower(%(text)s)) > 0)
          AND (%(pattern)s::text IS NULL OR text ~* %(pattern)s)
          AND (%(since)s::float8 IS NULL OR at >= to_timestamp(%(since)s))
          AND (%(until)s::float8 IS NULL OR at <= to_timestamp(%(until)s))
        ORDER BY seq {"DESC" if newest else "ASC"} LIMIT %(limit)s
        """.encode(),
        {
            "run": run_id, "after": after, "before": before, "limit": limit,
            "levels": None if wanted.levels is None else list(wanted.levels),
            "components": None if wanted.components is None else list(wanted.components),
            "agent": wanted.agent, "node": wanted.node, "text": wanted.text, "pattern": wanted.pattern,
            "since": wanted.since, "until": wanted.until,
        },
    ).fetchall()  # fmt: skip
    found = [StoredLine(*row) for row in rows]
    return found[::-1] if newest else found


def origins(conn: Connection, run_id: int) -> tuple[list[str], list[str], list[str]]:
    """List the (components, agents, nodes) among the newest lines of a run."""
    row = conn.execute(
        """
        SELECT coalesce(array_agg(DISTINCT component), '{}'),
          coalesce(array_agg(DISTINCT agent) FILTER (WHERE agent <> ''), '{}'),
          coalesce(array_agg(DISTINCT node) FILTER (WHERE node <> ''), '{}')
        FROM (SELECT component, agent, node FROM store.log WHERE run_id = %s ORDER BY seq DESC LIMIT 5000) l
        """,
        [run_id],
    ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def _clean(text: str) -> str:
    """Cut a text and take out what PostgreSQL cannot hold."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()[:TEXT_LIMIT]


def _json(fields: Mapping[str, object]) -> str:
    """Write fields as JSON that PostgreSQL takes, or say that they are not shown."""
    try:
        written = json.dumps(fields, default=str, allow_nan=False, ensure_ascii=True).replace("\\u0000", "")
    except ValueError:
        return '{"fields": "not readable"}'
    return written if len(written) <= FIELDS_LIMIT and not _LONE.search(written) else '{"fields": "not shown"}'
