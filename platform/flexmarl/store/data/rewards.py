"""Rewards that are computed apart from play: `open -> taken(token, deadline) -> done | failed`, then read once.

Invariants: an attempt has one task, however often it is asked for; at most one token of a task is live, and a result
counts only under it, so a reward that is computed twice settles once. A task is carried out only while the taker of its
play holds that command. What a worker that died held is open again at its deadline, or when a successor in its place
gives it back. Reading a result removes the row: the reader's own transaction is the record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg import Connection

from flexmarl.store.control.commands import Taken, guard
from flexmarl.store.node_operations import both, for_nodes, own_place, run_with_work, taken_command

RESEND_S = 2.0
"""A task that nobody took is named to the workers this often."""

_LEFT_BEHIND = """
    DELETE FROM store.reward_task t
    WHERE t.run_id = %(run)s AND (t.command_no, t.command_takes) <> (%(command)s, %(takes)s)
      AND (t.command_no = %(command)s OR EXISTS (
        SELECT 1 FROM unnest(%(draws)s::int[], %(members)s::int[], %(attempts)s::int[]) AS a(draw, member, attempt)
        WHERE (a.draw, a.member, a.attempt) = (t.draw, t.member, t.attempt)))
"""
_GIVEN_BACK = """
    UPDATE store.reward_task SET status = 'open', token = NULL, deadline = NULL, holder = '', takes = takes - 1,
      next_send = clock_timestamp()
"""


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """An episode whose reward is to be computed. `body`: its content, in a form that only the worker reads."""

    draw: int
    member: int
    attempt: int
    body: str


@dataclass(frozen=True, slots=True)
class TakenReward:
    """A worker's hold on a task."""

    run_id: int
    no: int
    token: UUID
    takes: int
    body: str
    reason: str
    """Of the try before."""


@dataclass(frozen=True, slots=True)
class Given:
    """How a task ended: with a result, or without one and why."""

    no: int
    result: str
    reason: str


@for_nodes(taken_command("taken"))
def ask(conn: Connection, taken: Taken, tasks: Sequence[RewardRequest]) -> list[int]:
    """Write tasks, in order; returns their numbers. Raises TokenLost or EpochStale for a play that is not held.

    What earlier takers of the play left behind goes, and what an earlier play of these very members did: they have
    been played anew since.
    """
    values = {
        "run": taken.run_id,
        "command": taken.no,
        "takes": taken.takes,
        "again": RESEND_S,
        "draws": [one.draw for one in tasks],
        "members": [one.member for one in tasks],
        "attempts": [one.attempt for one in tasks],
        "bodies": [one.body for one in tasks],
    }
    with conn.transaction():
        guard(conn, taken)
        conn.execute(_LEFT_BEHIND.encode(), values)
        rows = conn.execute(
            """
            INSERT INTO store.reward_task AS t (run_id, command_no, command_takes, draw, member, attempt, body,
              next_send)
            SELECT %(run)s, %(command)s, %(takes)s, a.draw, a.member, a.attempt, a.body,
              clock_timestamp() + make_interval(secs => %(again)s)
            FROM unnest(%(draws)s::int[], %(members)s::int[], %(attempts)s::int[], %(bodies)s::text[])
              AS a(draw, member, attempt, body)
            ON CONFLICT (run_id, draw, member, attempt) DO UPDATE SET command_takes = excluded.command_takes
            RETURNING t.draw, t.member, t.attempt, t.no
            """,
            values,
        ).fetchall()
    numbers = {(draw, member, attempt): int(no) for draw, member, attempt, no in rows}
    return [numbers[one.draw, one.member, one.attempt] for one in tasks]


@for_nodes(both(run_with_work("run_id"), own_place("holder")))
def take(conn: Connection, run_id: int, no: int, ttl_s: float, holder: str = "") -> TakenReward | None:
    """Take an open task, or one whose taker let its deadline pass. None when there is nothing to do."""
    row = conn.execute(
        """
        UPDATE store.reward_task t
        SET status = 'taken', token = gen_random_uuid(), takes = t.takes + 1, holder = %(holder)s,
          deadline = clock_timestamp() + make_interval(secs => %(ttl)s),
          next_send = clock_timestamp() + make_interval(secs => %(ttl)s)
        FROM store.command c JOIN store.run_state r USING (run_id)
        WHERE t.run_id = %(run)s AND t.no = %(no)s AND c.run_id = t.run_id AND c.no = t.command_no
          AND c.status = 'taken' AND c.takes = t.command_takes AND c.epoch = r.epoch
          AND (t.status = 'open' OR (t.status = 'taken' AND t.deadline < clock_timestamp()))
        RETURNING t.run_id, t.no, t.token, t.takes, t.body, t.reason
        """,
        {"run": run_id, "no": no, "ttl": ttl_s, "holder": holder},
    ).fetchone()
    return None if row is None else TakenReward(*row)


@for_nodes(run_with_work("taken.run_id"))
def extend(conn: Connection, taken: TakenReward, ttl_s: float) -> bool:
    """Move the deadline of a held task; False: stop working on it."""
    cursor = conn.execute(
        """
        UPDATE store.reward_task t
        SET deadline = clock_timestamp() + make_interval(secs => %(ttl)s),
          next_send = clock_timestamp() + make_interval(secs => %(ttl)s)
        WHERE t.run_id = %(run)s AND t.no = %(no)s AND t.token = %(token)s AND t.status = 'taken'
        """,
        {"run": taken.run_id, "no": taken.no, "token": taken.token, "ttl": ttl_s},
    )
    return cursor.rowcount == 1


@for_nodes(run_with_work("taken.run_id"))
def settle(conn: Connection, taken: TakenReward, result: str, reason: str = "") -> bool:
    """End a held task with its result, or without one for a reason; False when it was not held any more."""
    return _end(conn, taken, "failed" if reason else "done", result, reason)


@for_nodes(run_with_work("taken.run_id"))
def try_again(conn: Connection, taken: TakenReward, reason: str, after_s: float) -> bool:
    """Open a held task for another try; False when it was not held any more."""
    return _end(conn, taken, "open", "", reason, after_s)


def _end(conn: Connection, taken: TakenReward, status: str, result: str, reason: str, after_s: float = 0.0) -> bool:
    cursor = conn.execute(
        """
        UPDATE store.reward_task
        SET status = %s, result = %s, reason = %s, token = NULL, deadline = NULL, holder = '',
          next_send = clock_timestamp() + make_interval(secs => %s)
        WHERE run_id = %s AND no = %s AND token = %s AND status = 'taken'
        """,
        [status, result, reason[:2000], after_s, taken.run_id, taken.no, taken.token],
    )
    return cursor.rowcount == 1


@for_nodes(run_with_work("taken.run_id"))
def give_back(conn: Connection, taken: TakenReward) -> None:
    """Give a held task back untried, for a worker that shuts down. Does nothing when it is not held."""
    conn.execute(
        f"{_GIVEN_BACK} WHERE run_id = %s AND no = %s AND token = %s AND status = 'taken'".encode(),
        [taken.run_id, taken.no, taken.token],
    )


@for_nodes(own_place("holder"))
def reopen_of(conn: Connection, holder: str) -> list[tuple[int, int]]:
    """Give back what an earlier process in this place held; returns (run, number). Its tries count: it died at them."""
    rows = conn.execute(
        """
        UPDATE store.reward_task
        SET status = 'open', token = NULL, deadline = NULL, holder = '', next_send = clock_timestamp()
        WHERE holder = %s AND holder <> '' AND status = 'taken' RETURNING run_id, no
        """,
        [holder],
    ).fetchall()
    return sorted((run_id, no) for run_id, no in rows)


@for_nodes(run_with_work("run_id"))
def collect(conn: Connection, run_id: int, numbers: Sequence[int]) -> list[Given]:
    """Read, and remove, those of the tasks that have ended."""
    rows = conn.execute(
        "DELETE FROM store.reward_task WHERE run_id = %s AND no = ANY(%s) AND status IN ('done', 'failed') "
        "RETURNING no, result, reason",
        [run_id, list(numbers)],
    ).fetchall()
    return [Given(*row) for row in rows]


@for_nodes(run_with_work("run_id"))
def due(conn: Connection, run_id: int, numbers: Sequence[int]) -> list[int]:
    """List those of the tasks that the workers should be told of again, and note that they are."""
    rows = conn.execute(
        """
        UPDATE store.reward_task SET next_send = clock_timestamp() + make_interval(secs => %s)
        WHERE run_id = %s AND no = ANY(%s) AND next_send <= clock_timestamp()
          AND (status = 'open' OR (status = 'taken' AND deadline < clock_timestamp()))
        RETURNING no
        """,
        [RESEND_S, run_id, list(numbers)],
    ).fetchall()
    return sorted(row[0] for row in rows)


@for_nodes(run_with_work("run_id"))
def forget(conn: Connection, run_id: int, numbers: Sequence[int]) -> None:
    """Remove tasks that nobody waits for any more; a result that comes later finds nothing to settle."""
    conn.execute("DELETE FROM store.reward_task WHERE run_id = %s AND no = ANY(%s)", [run_id, list(numbers)])
