"""Micro-batches: fixed membership in, accumulated gradient sums noted.

Invariants: the driver's decision fixes keys, advantages and weights; nobody changes them. `accumulated` names the
accumulator epoch that holds the gradient; a later epoch may accumulate the same members again, an applied or void
micro-batch never.
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from psycopg import Connection

from flexmarl.contracts.commands import Accumulate
from flexmarl.contracts.events import MicroBatchAccumulated
from flexmarl.contracts.wire import TrainStats
from flexmarl.store.control.commands import Taken, finish, guard
from flexmarl.store.control.inbox import put_event
from flexmarl.store.data import reply_grammars
from flexmarl.store.data.payload import Arrays
from flexmarl.store.data.spans import Span, steps_of
from flexmarl.store.data.stored_payloads import PAYLOAD, load
from flexmarl.store.errors import Refused
from flexmarl.store.node_operations import for_nodes, run_with_work, taken_command

_MEMBER = 9
"""Columns of a member before its payload's."""
MEMBERS = f"""
SELECT s.draw, s.member, s.attempt, s.role, s.turn, s.segments, s.temperature, m.weights[k.ord], s.spans, {PAYLOAD}
FROM store.micro_batch m, jsonb_array_elements(m.keys) WITH ORDINALITY AS k(key, ord),
  LATERAL (
    SELECT * FROM store.sample s
    WHERE s.run_id = %(run)s AND s.draw = (k.key ->> 0)::int AND s.member = (k.key ->> 1)::int
      AND s.attempt = (k.key ->> 2)::int AND s.role = k.key ->> 3 AND s.turn = (k.key ->> 4)::int
    LIMIT 1
  ) s
WHERE m.run_id = %(run)s AND m.policy = %(policy)s AND m.no = %(no)s
ORDER BY k.ord"""
"""Members of a micro-batch. LIMIT makes each a look into the primary key: a join would scan the whole run."""


@dataclass(frozen=True, slots=True)
class MicroBatchRow:
    """A member: its chain's arrays and what the cut fixed."""

    draw: int
    member: int
    attempt: int
    role: str
    turn: int
    """The first of the chain."""
    segments: list[int]
    """version, tokens, version, tokens, ... over what was sampled"""
    temperature: float
    weight: float
    spans: list[int]
    """Lengths of what was read and what was sampled, by turns."""
    offsets: list[int]
    """How many turns of its role each turn stands behind the first; empty: there is only one."""
    advantages: list[float]
    """Of each turn."""
    arrays: Arrays
    grammars: list[str]
    """Of each turn, the digest of what its reply was held to, empty for nothing; an empty list: of no turn anything."""
    steps: bytes = b""
    """int16[n_response]: the step in which each token was revealed, of a row made by block diffusion; empty: another"""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    policy: str
    no: int
    cohort: int
    status: str
    rows: list[MicroBatchRow]
    proximal: int | None = None
    """Version that the first step on its cohort began with, None before there was one."""
    grammars: dict[str, str] = field(default_factory=dict)
    """What replies of its rows were held to: digest -> `ReplyGrammar` as JSON."""


@for_nodes(run_with_work("run_id"))
def read(conn: Connection, run_id: int, policy: str, no: int) -> MicroBatch:
    """Read a micro-batch with its samples, in the order of its keys. Raises Refused when one cannot be had whole."""
    which = {"run": run_id, "policy": policy, "no": no}
    head = conn.execute(
        "SELECT cohort, status, keys, advantages, (SELECT min(o.version) - 1 FROM store.micro_batch o"
        " WHERE o.run_id = m.run_id AND o.cohort = m.cohort AND o.policy = m.policy AND o.status = 'applied')"
        " FROM store.micro_batch m WHERE run_id = %(run)s AND policy = %(policy)s AND no = %(no)s",
        which,
    ).fetchone()
    if head is None:
        raise Refused("no_micro_batch", f"micro-batch {policy}/{no} of run {run_id} does not exist")
    cohort, status, keys, advantages, proximal = head
    with conn.cursor(binary=True) as cursor:  # binary: payloads come without hexadecimal in between
        found = cursor.execute(MEMBERS.encode(), which).fetchall()
    if len(found) != len(keys):
        raise Refused("missing_sample", f"micro-batch {policy}/{no}: {len(found)} of {len(keys)} samples exist")
    arrays, fixed = load(conn, [row[_MEMBER:] for row in found]), iter(advantages)
    rows = [
        _member(one, list(islice(fixed, key[-1])), *row[:_MEMBER])
        for row, key, one in zip(found, keys, arrays, strict=True)
    ]
    named = {digest for row in rows for digest in row.grammars if digest}
    return MicroBatch(policy, no, cohort, status, rows, proximal, dict(reply_grammars.load(conn, run_id, named)))


def _member(
    arrays: Arrays, advantages: list[float], draw: int, member: int, attempt: int, role: str, turn: int,
    segments: list[int], temperature: float, weight: float, kept: list[list[Any]] | None,
) -> MicroBatchRow:  # fmt: skip
    spans = [arrays.n_prompt, arrays.n_response] if kept is None else [n for span in kept for n in span[:2]]
    told = [] if kept is None else [Span(*span) for span in kept]
    grammars = [span.grammar for span in told] if any(span.grammar for span in told) else []
    return MicroBatchRow(
        draw, member, attempt, role, turn, segments, temperature, weight, spans, [span.offset for span in told],
        advantages, arrays, grammars, steps_of(told),
    )  # fmt: skip


@for_nodes(taken_command("taken"))
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
            SET status = 'accumulated', accumulator = %s, done_at = clock_timestamp(),
              stats = %s::jsonb || jsonb_build_object('entropy_coef', %s::float8)
            WHERE run_id = %s AND policy = %s AND no = %s AND status IN ('cut', 'accumulated')
            """,
            [accumulator, stats.model_dump_json(), order.entropy_coef, taken.run_id, policy, no],
        )
        if cursor.rowcount != 1:
            raise Refused("micro_batch_closed", f"micro-batch {policy}/{no} is applied, void or absent")
        # The command's number is in the key: a trainer bound anew accumulates again under the same epoch.
        put_event(conn, taken.run_id, f"mb:{policy}:{no}:{accumulator}:{taken.no}", event)
        finish(conn, taken)
