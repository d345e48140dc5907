"""Micro-batches: fixed membership in, accumulated gradient sums noted.

Invariants: the driver's decision fixes keys, advantages and weights; nobody changes them. `accumulated` names the
accumulator epoch that holds the gradient; a later epoch may accumulate the same members again, an applied or void
micro-batch never.
"""

from dataclasses import dataclass

import orjson
from psycopg import Connection

from flexmarl.contracts.commands import Accumulate
from flexmarl.contracts.events import MicroBatchAccumulated
from flexmarl.contracts.wire import TrainStats
from flexmarl.store.commands import Taken, finish, guard
from flexmarl.store.errors import Refused
from flexmarl.store.inbox import put_event
from flexmarl.store.payload import Arrays
from flexmarl.store.stored_payloads import PAYLOAD, load

_MEMBER = 9
"""Columns of a member before its payload's."""


@dataclass(frozen=True, slots=True)
class MicroBatchRow:
    """A member: its sample's arrays and what the cut fixed."""

    draw: int
    member: int
    attempt: int
    role: str
    turn: int
    version: int
    temperature: float
    advantage: float
    weight: float
    arrays: Arrays


@dataclass(frozen=True, slots=True)
class MicroBatch:
    policy: str
    no: int
    cohort: int
    status: str
    rows: list[MicroBatchRow]


def read(conn: Connection, run_id: int, policy: str, no: int) -> MicroBatch:
    """Read a micro-batch with its samples, in the order of its keys. Raises Refused when one cannot be had whole."""
    head = conn.execute(
        "SELECT cohort, status, keys::text FROM store.micro_batch WHERE run_id = %s AND policy = %s AND no = %s",
        [run_id, policy, no],
    ).fetchone()
    if head is None:
        raise Refused("no_micro_batch", f"micro-batch {policy}/{no} of run {run_id} does not exist")
    keys = orjson.loads(head[2])
    with conn.cursor(binary=True) as cursor:  # binary: payloads come without hexadecimal in between
        found = cursor.execute(
            f"""
            SELECT s.draw, s.member, s.attempt, s.role, s.turn, s.version, s.temperature, k.advantage, k.weight,
              {PAYLOAD}
            FROM (
              SELECT key.*, m.advantages[key.ord] AS advantage, m.weights[key.ord] AS weight
              FROM store.micro_batch m,
                unnest(%(draws)s::int[], %(members)s::int[], %(attempts)s::int[], %(roles)s::text[], %(turns)s::int[])
                  WITH ORDINALITY AS key(draw, member, attempt, role, turn, ord)
              WHERE m.run_id = %(run)s AND m.policy = %(policy)s AND m.no = %(no)s
            ) k
            JOIN store.sample s ON s.run_id = %(run)s AND s.draw = k.draw AND s.member = k.member
              AND s.attempt = k.attempt AND s.role = k.role AND s.turn = k.turn
            ORDER BY k.ord
            """.encode(),
            {
                "run": run_id, "policy": policy, "no": no,
                "draws": [k[0] for k in keys], "members": [k[1] for k in keys], "attempts": [k[2] for k in keys],
                "roles": [k[3] for k in keys], "turns": [k[4] for k in keys],
            },
        ).fetchall()  # fmt: skip
    if len(found) != len(keys):
        raise Refused("missing_sample", f"micro-batch {policy}/{no}: {len(found)} of {len(keys)} samples exist")
    arrays = load(conn, [row[_MEMBER:] for row in found])
    rows = [_member(loaded, *row[:_MEMBER]) for row, loaded in zip(found, arrays, strict=True)]
    return MicroBatch(policy, no, head[0], head[1], rows)


def _member(
    arrays: Arrays, draw: int, member: int, attempt: int, role: str, turn: int, version: int, temperature: float,
    advantage: float, weight: float,
) -> MicroBatchRow:  # fmt: skip
    return MicroBatchRow(draw, member, attempt, role, turn, version, temperature, advantage, weight, arrays)


def accumulated(conn: Connection, taken: Taken, policy: str, no: int, *, accumulator: str, stats: TrainStats) -> None:
    """Note a micro-batch's gradient, tell the driver and finish the command, in one transaction.

    Raises TokenLost, EpochStale, or Refused when the micro-batch was applied or voided, or is another command's.
    """
    event = MicroBatchAccumulated(policy=policy, micro_batch=no, accumulator=accumulator, stats=stats)
    order = taken.command
    if not isinstance(order, Accumulate) or (order.policy, order.micro_batch) != (policy, no):
        raise Refused("outside_command", f"command {taken.no} of run {taken.run_id} is not for {policy}/{no}")
    with conn.transaction():
        guard(conn, taken)
        cursor = conn.execute(
            """
            UPDATE store.micro_batch
            SET status = 'accumulated', accumulator = %s, stats = %s::jsonb, done_at = clock_timestamp()
            WHERE run_id = %s AND policy = %s AND no = %s AND status IN ('cut', 'accumulated')
            """,
            [accumulator, stats.model_dump_json(), taken.run_id, policy, no],
        )
        if cursor.rowcount != 1:
            raise Refused("micro_batch_closed", f"micro-batch {policy}/{no} is applied, void or absent")
        # The command's number is in the key: a trainer bound anew accumulates again under the same epoch.
        put_event(conn, taken.run_id, f"mb:{policy}:{no}:{accumulator}:{taken.no}", event)
        finish(conn, taken)
