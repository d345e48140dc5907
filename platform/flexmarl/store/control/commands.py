"""One table as outbox, truth and fence: `open -> taken(token, deadline) -> done | failed | void`.

Invariants: at most one live token per command; every later write names it and fails with TokenLost when the command
was taken again, ended or voided. A command of an older run epoch is never taken, except `host_lease`: the lease's own
state says whether its child may live. `takes` numbers the takers, so that what they make never collides. What a dead
process held waits for its deadline, or for a successor in its place that gives it back (`reopen_of`, `reopen_on_node`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import orjson
from psycopg import Connection

from flexmarl.contracts.commands import Command, Route, command_adapter
from flexmarl.contracts.events import CommandFailed
from flexmarl.store import storable
from flexmarl.store.control.inbox import put_event
from flexmarl.store.errors import EpochStale, TokenLost
from flexmarl.store.node_operations import (
    both,
    for_nodes,
    own_command,
    own_node,
    own_place,
    taken_command,
    taken_commands,
)
from flexmarl.store.server_paths import without_paths

RESEND_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Back-off of pushes: a push is a hint and may be lost."""

_LIVE = "(c.kind = 'host_lease' OR (c.epoch = r.epoch AND r.status NOT IN ('failed', 'killed')))"
_GIVEN_BACK = """status = 'open', token = NULL, deadline = NULL, holder = '', sends = 0,
          next_send = clock_timestamp()"""


@dataclass(frozen=True, slots=True)
class Taken:
    """A worker's hold on a command. Every write that follows names it."""

    run_id: int
    no: int
    token: UUID
    takes: int
    epoch: int
    command: Command
    held: bool = False
    """What it plays stood still when it was taken."""


@dataclass(frozen=True, slots=True)
class NextCommand:
    """What a child carries out next."""

    taken: Taken
    more: bool
    """Another command of the child was open behind it."""


class ClaimStatus(StrEnum):
    """State of a claimed command."""

    GOES_ON = "goes_on"
    HELD = "held"
    """It stays with whoever has it, and what it plays stands still."""
    GONE = "gone"
    """It was voided, taken again, or its run moved on."""


@dataclass(frozen=True, slots=True)
class DueCommand:
    """A command somebody should be told of (again)."""

    no: int
    kind: str
    route: Route
    queue: str
    address: str
    """host:port of the node, when the route is the node; empty while it is unknown."""
    node: str
    """Name of that node; empty likewise."""
    lease_id: int
    """Child the command is for, 0 for none: a push that names it wakes only that one."""
    sends: int
    body: str
    """JSON of the command, for those the driver carries out itself."""


@dataclass(frozen=True, slots=True)
class Reopened:
    """A command that the process before held, given back."""

    run_id: int
    no: int
    kind: str
    queue: str


@for_nodes(both(own_command("run_id", "no"), own_place("holder")))
def take(conn: Connection, run_id: int, no: int, ttl_s: float, holder: str = "") -> Taken | None:
    """Take an open command, or one whose taker let its deadline pass. None when there is nothing to do.

    `holder` names the taker's place; empty when nobody will come to the same one.
    """
    row = conn.execute(
        f"""
        UPDATE store.command c
        SET status = 'taken', token = gen_random_uuid(), takes = c.takes + 1, taken_at = clock_timestamp(),
          deadline = clock_timestamp() + make_interval(secs => %(ttl)s), holder = %(holder)s,
          next_send = clock_timestamp() + make_interval(secs => %(ttl)s), sends = 0
        FROM store.run_state r
        WHERE c.run_id = %(run)s AND c.no = %(no)s AND r.run_id = c.run_id AND {_LIVE}
          AND (c.status = 'open' OR (c.status = 'taken' AND c.deadline < clock_timestamp()))
        RETURNING c.run_id, c.no, c.token, c.takes, c.epoch, c.body::text, c.held
        """.encode(),
        {"run": run_id, "no": no, "ttl": ttl_s, "holder": holder},
    ).fetchone()
    return None if row is None else _taken(*row)


def take_next(conn: Connection, lease_id: int, ttl_s: float, after: int = 0, holder: str = "") -> NextCommand | None:
    """Take the oldest command that the child of a lease should carry out. None while an older one is held.

    Who holds one may take ahead by naming it in `after`. Who names no such one holds nothing: what the same `holder`
    took before, and never learned of since the answer was lost, is taken anew.
    """
    row = conn.execute(
        f"""
        UPDATE store.command c
        SET status = 'taken', token = gen_random_uuid(), takes = c.takes + 1, taken_at = clock_timestamp(),
          deadline = clock_timestamp() + make_interval(secs => %(ttl)s), holder = %(holder)s,
          next_send = clock_timestamp() + make_interval(secs => %(ttl)s), sends = 0
        FROM (
          SELECT c.run_id, c.no FROM store.command c JOIN store.run_state r USING (run_id)
          WHERE c.lease_id = %(lease)s AND c.route = 'node' AND c.status IN ('open', 'taken') AND {_LIVE}
            AND c.no > %(after)s
          ORDER BY c.no LIMIT 1
        ) oldest
        WHERE c.run_id = oldest.run_id AND c.no = oldest.no
          AND (c.status = 'open' OR (c.status = 'taken' AND (c.deadline < clock_timestamp()
            OR (c.holder = %(holder)s AND c.holder <> '' AND %(after)s = 0))))
        RETURNING c.run_id, c.no, c.token, c.takes, c.epoch, c.body::text, c.held, EXISTS (
          SELECT 1 FROM store.command n
          WHERE n.lease_id = c.lease_id AND n.route = 'node' AND n.status = 'open' AND n.no > c.no)
        """.encode(),
        {"lease": lease_id, "ttl": ttl_s, "after": after, "holder": holder},
    ).fetchone()
    return None if row is None else NextCommand(_taken(*row[:-1]), row[-1])


def _taken(run_id: int, no: int, token: UUID, takes: int, epoch: int, body: str, held: bool) -> Taken:
    return Taken(run_id, no, token, takes, epoch, command_adapter.validate_json(body), held)


@for_nodes(taken_commands("held"))
def extend(conn: Connection, held: Sequence[Taken], ttl_s: float) -> list[ClaimStatus]:
    """Move the deadlines of held commands; says of each what becomes of it.

    A command whose row somebody else has locked is not waited for, since whoever locks several waits for us in turn: it
    keeps its deadline until the next time.
    """
    rows = conn.execute(
        f"""
        WITH held AS (
          SELECT c.run_id, c.no, c.token, c.held FROM store.command c JOIN store.run_state r USING (run_id)
          JOIN unnest(%(runs)s::bigint[], %(nos)s::bigint[], %(tokens)s::uuid[]) AS h(run_id, no, token)
            ON h.run_id = c.run_id AND h.no = c.no AND h.token = c.token
          WHERE c.status = 'taken' AND {_LIVE}
        ), free AS MATERIALIZED (
          SELECT c.run_id, c.no FROM store.command c JOIN held USING (run_id, no, token)
          WHERE c.status = 'taken' FOR UPDATE OF c SKIP LOCKED
        ), moved AS (
          UPDATE store.command c SET deadline = clock_timestamp() + make_interval(secs => %(ttl)s),
            next_send = clock_timestamp() + make_interval(secs => %(ttl)s)
          FROM free WHERE c.run_id = free.run_id AND c.no = free.no
        )
        SELECT token, held FROM held
        """.encode(),
        {
            "runs": [taken.run_id for taken in held],
            "nos": [taken.no for taken in held],
            "tokens": [taken.token for taken in held],
            "ttl": ttl_s,
        },
    ).fetchall()
    return _standings(held, rows)


@for_nodes(taken_commands("taken"))
def held_among(conn: Connection, taken: Sequence[Taken]) -> list[ClaimStatus]:
    """Say of commands whether what they play stands still; writes nothing, so that it can be asked often."""
    rows = conn.execute(
        """
        SELECT c.token, c.held FROM store.command c
        JOIN unnest(%s::bigint[], %s::bigint[]) AS t(run_id, no) ON t.run_id = c.run_id AND t.no = c.no
        WHERE c.status = 'taken'
        """,
        [[one.run_id for one in taken], [one.no for one in taken]],
    ).fetchall()
    return _standings(taken, rows)


def _standings(taken: Sequence[Taken], rows: Sequence[tuple[UUID, bool]]) -> list[ClaimStatus]:
    alive = {token: ClaimStatus.HELD if held else ClaimStatus.GOES_ON for token, held in rows}
    return [alive.get(one.token, ClaimStatus.GONE) for one in taken]


def as_stored(conn: Connection, taken: Taken) -> Taken:
    """Return a hold as its row tells it, whoever names its token; one that is lost stays as it was said."""
    row = conn.execute(
        "SELECT run_id, no, token, takes, epoch, body::text, held FROM store.command "
        "WHERE run_id = %s AND no = %s AND token = %s AND status = 'taken'",
        [taken.run_id, taken.no, taken.token],
    ).fetchone()
    return taken if row is None else _taken(*row)


def guard(conn: Connection, taken: Taken) -> None:
    """Hold the command still until the caller's transaction ends. Raises TokenLost or EpochStale."""
    row = conn.execute(
        """
        SELECT c.status, c.token, c.kind, r.epoch
        FROM store.command c JOIN store.run_state r USING (run_id)
        WHERE c.run_id = %s AND c.no = %s FOR SHARE OF c
        """,
        [taken.run_id, taken.no],
    ).fetchone()
    if row is None or row[0] != "taken" or row[1] != taken.token:
        raise TokenLost(taken.run_id, taken.no)
    if row[2] != "host_lease" and row[3] != taken.epoch:
        raise EpochStale(taken.run_id, taken.epoch, row[3])


@for_nodes(taken_command("taken"))
def finish(conn: Connection, taken: Taken) -> None:
    """Mark a held command done. Raises TokenLost."""
    _close(conn, taken, "done", None)


@for_nodes(taken_command("taken"))
def fail(conn: Connection, taken: Taken, code: str, message: str, retryable: bool) -> None:
    """Mark a held command failed and tell the driver, in one transaction. Raises TokenLost."""
    said = without_paths(message)[:4000]
    error = {"code": code, "message": said, "retryable": retryable}
    event = CommandFailed(
        command_no=taken.no, command_kind=taken.command.kind, code=code, message=said, retryable=retryable
    )
    with conn.transaction():
        _close(conn, taken, "failed", storable.json(orjson.dumps(error).decode()))
        put_event(conn, taken.run_id, f"failed:{taken.no}:{taken.takes}", event)


@for_nodes(taken_command("taken"))
def reopen(conn: Connection, taken: Taken) -> None:
    """Give a held command back at once, for a worker that shuts down. Does nothing when it is not held."""
    conn.execute(
        """
        UPDATE store.command SET status = 'open', token = NULL, deadline = NULL, sends = 0,
          next_send = clock_timestamp()
        WHERE run_id = %s AND no = %s AND token = %s AND status = 'taken'
        """,
        [taken.run_id, taken.no, taken.token],
    )


@for_nodes(own_place("holder"))
def reopen_of(conn: Connection, holder: str) -> list[Reopened]:
    """Give back what an earlier process in this place still held: it is gone, and its tokens with it."""
    rows = conn.execute(
        f"""
        UPDATE store.command SET {_GIVEN_BACK}
        WHERE holder = %s AND holder <> '' AND status = 'taken' RETURNING run_id, no, kind, queue
        """.encode(),
        [holder],
    ).fetchall()
    return [Reopened(*row) for row in sorted(rows)]


@for_nodes(own_node("node"))
def reopen_on_node(conn: Connection, node: str) -> int:
    """Give back what the node's agent before held of its children's commands; returns how many."""
    cursor = conn.execute(
        f"""
        UPDATE store.command SET {_GIVEN_BACK}
        WHERE route = 'node' AND status = 'taken' AND lease_id IN (
          SELECT l.id FROM store.lease l JOIN store.device d ON d.id = l.device_id
          WHERE d.node = %s AND l.state <> 'ended')
        """.encode(),
        [node],
    )
    return cursor.rowcount


def _close(conn: Connection, taken: Taken, status: str, error: str | None) -> None:
    cursor = conn.execute(
        """
        UPDATE store.command SET status = %s, error = %s::jsonb, done_at = clock_timestamp(), deadline = NULL
        WHERE run_id = %s AND no = %s AND token = %s AND status = 'taken'
        """,
        [status, error, taken.run_id, taken.no, taken.token],
    )
    if cursor.rowcount != 1:
        raise TokenLost(taken.run_id, taken.no)


def finish_driver(conn: Connection, run_id: int, no: int) -> bool:
    """Mark an open command done that the driver carried out itself, in the driver's transaction."""
    cursor = conn.execute(
        "UPDATE store.command SET status = 'done', done_at = clock_timestamp() "
        "WHERE run_id = %s AND no = %s AND route = 'driver' AND status = 'open'",
        [run_id, no],
    )
    return cursor.rowcount == 1


def due(conn: Connection, run_id: int) -> list[DueCommand]:
    """List, in command order, what must be pushed now: open and not told lately, or taken and past its deadline."""
    rows = conn.execute(
        """
        SELECT c.no, c.kind, c.route, c.queue, coalesce(n.address, ''), coalesce(n.name, ''), coalesce(c.lease_id, 0),
          c.sends,
          CASE WHEN c.route = 'driver' THEN c.body::text ELSE '' END
        FROM store.command c
        LEFT JOIN store.lease l ON l.id = c.lease_id
        LEFT JOIN store.device d ON d.id = l.device_id
        LEFT JOIN store.node n ON n.name = d.node
        WHERE c.run_id = %s AND c.next_send <= clock_timestamp()
          AND (c.status = 'open' OR (c.status = 'taken' AND c.deadline < clock_timestamp()))
        ORDER BY c.no
        """,
        [run_id],
    ).fetchall()
    return [DueCommand(no, kind, Route(route), *rest) for no, kind, route, *rest in rows]


def mark_sent(conn: Connection, run_id: int, numbers: Sequence[int]) -> None:
    """Note that commands were pushed, and when to push them again if nobody took them."""
    if not numbers:
        return
    conn.execute(
        """
        UPDATE store.command
        SET sends = sends + 1,
          next_send = clock_timestamp() + make_interval(secs => (%s::float8[])[least(sends, %s) + 1])
        WHERE run_id = %s AND no = ANY(%s) AND status IN ('open', 'taken')
        """,
        [list(RESEND_S), len(RESEND_S) - 1, run_id, list(numbers)],
    )


def next_due(conn: Connection, run_id: int) -> float | None:
    """Return the database time at which `due` will next list something, None when nothing is on its way."""
    row = conn.execute(
        """
        SELECT extract(epoch FROM min(next_send))::float8 FROM store.command
        WHERE run_id = %s AND status IN ('open', 'taken')
        """,
        [run_id],
    ).fetchone()
    assert row is not None
    return None if row[0] is None else float(row[0])


@for_nodes(own_node("node"))
def open_on_node(conn: Connection, node: str) -> list[tuple[int, int, int]]:
    """List (run, number, lease) of the commands a node's children should carry out, in command order."""
    rows = conn.execute(
        """
        SELECT c.run_id, c.no, c.lease_id
        FROM store.lease l JOIN store.device d ON d.id = l.device_id
        JOIN store.command c ON c.lease_id = l.id AND c.route = 'node'
        WHERE d.node = %s AND l.state = 'held' AND l.incarnation <> '' AND l.endpoint <> ''
          AND (c.status = 'open' OR (c.status = 'taken' AND c.deadline < clock_timestamp()))
        ORDER BY c.run_id, c.no
        """,
        [node],
    ).fetchall()
    return [(run_id, no, lease_id) for run_id, no, lease_id in rows]
