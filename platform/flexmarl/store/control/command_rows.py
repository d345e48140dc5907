"""Rows of commands and micro-batches, as the driver's decision writes them: each kind with one statement.

Arrays travel in binary: rendering and parsing their text would cost more than writing the rows.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson
from psycopg import Connection

from flexmarl.contracts.commands import (
    COMMAND_KINDS,
    Command,
    CutMicroBatch,
    HoldGroups,
    HostLease,
    KeepCheckpoints,
    PlayGroups,
    ReleaseLease,
    RequestDevices,
    Route,
)
from flexmarl.contracts.decisions import NumberedCommand

DEMANDS = "flexmarl_demands"
"""NOTIFY channel of who asks providers for hosts: a request for devices waits. A hint, without a payload."""


class IssuedCommand(NamedTuple):
    """A numbered command and the event that led to it."""

    seq: int
    numbered: NumberedCommand
    cause: str = ""
    """Request that led to it, when a verb did."""


def write_commands(conn: Connection, run_id: int, commands: Sequence[IssuedCommand]) -> None:
    """Write commands. What most of a batch share travels once; each command names its head.

    Who asks providers for hosts is told of a request for devices when the transaction around has committed.
    """
    if not commands:
        return
    heads: dict[_Head, int] = {}
    of = [heads.setdefault(_head(issued), len(heads) + 1) for issued in commands]
    conn.execute(
        """
        INSERT INTO store.command (run_id, no, seq, epoch, kind, route, lease_id, queue, body, status, cause, reason,
          done_at)
        SELECT %(run)s, c.no, c.seq, (%(epochs)b::int[])[c.head], (%(kinds)b::text[])[c.head],
          (%(routes)b::text[])[c.head], nullif(c.lease_id, 0), (%(queues)b::text[])[c.head], c.body::jsonb,
          (%(statuses)b::text[])[c.head], (%(causes)b::text[])[c.head], c.reason,
          CASE WHEN (%(statuses)b::text[])[c.head] = 'done' THEN clock_timestamp() END
        FROM unnest(%(nos)b::bigint[], %(seqs)b::bigint[], %(heads)b::int[], %(leases)b::bigint[], %(bodies)b::text[],
                    %(reasons)b::text[]) AS c(no, seq, head, lease_id, body, reason)
        """,
        {
            "run": run_id,
            "epochs": [head.epoch for head in heads],
            "kinds": [head.kind for head in heads],
            "routes": [head.route for head in heads],
            "queues": [head.queue for head in heads],
            "statuses": [head.status for head in heads],
            "causes": [head.cause for head in heads],
            "nos": [issued.numbered.no for issued in commands],
            "seqs": [issued.seq for issued in commands],
            "heads": of,
            "leases": [_lease_of(issued.numbered.command) for issued in commands],
            "bodies": [_body_of(issued.numbered.command) for issued in commands],
            "reasons": [issued.numbered.reason for issued in commands],
        },
    )
    if any(isinstance(issued.numbered.command, RequestDevices) for issued in commands):
        conn.execute("SELECT pg_notify(%s, '')", [DEMANDS])


def write_micro_batches(conn: Connection, run_id: int, commands: Sequence[Command]) -> None:
    """Fix membership and advantages. The samples live here only, not in the command's row as well."""
    cuts = [command for command in commands if isinstance(command, CutMicroBatch)]
    if not cuts:
        return
    keys = [[[s.draw, s.member, s.attempt, s.role, s.turn, len(s.advantages)] for s in cut.samples] for cut in cuts]
    conn.execute(
        """
        INSERT INTO store.micro_batch (run_id, policy, no, cohort, keys, advantages, weights, replayed)
        SELECT %(run)s, m.policy, m.no, m.cohort, m.keys::jsonb, m.advantages::float8[]::float4[],
          m.weights::float8[]::float4[], m.replayed
        FROM unnest(%(policies)b::text[], %(nos)b::int[], %(cohorts)b::int[], %(keys)b::text[], %(advantages)b::text[],
                    %(weights)b::text[], %(replayed)b::bool[])
          AS m(policy, no, cohort, keys, advantages, weights, replayed)
        """,
        {
            "run": run_id,
            "policies": [cut.ref.policy for cut in cuts],
            "nos": [cut.ref.no for cut in cuts],
            "cohorts": [cut.cohort for cut in cuts],
            "keys": [orjson.dumps(one).decode() for one in keys],
            "advantages": [_array(a for s in cut.samples for a in s.advantages) for cut in cuts],
            "weights": [_array(s.weight for s in cut.samples) for cut in cuts],
            "replayed": [bool(cut.replayed) for cut in cuts],
        },
    )


def hold(conn: Connection, run_id: int, command: HoldGroups) -> None:
    """Note which commands are to stand still, or go on; their takers learn it at the next extension."""
    conn.execute(
        "UPDATE store.command SET held = %s WHERE run_id = %s AND no = ANY(%s) AND status IN ('open', 'taken')",
        [command.hold, run_id, list(command.commands)],
    )


_ROWS = CutMicroBatch | ReleaseLease | KeepCheckpoints | HoldGroups
"""What the transaction of a decision carries out."""


class _Head(NamedTuple):
    epoch: int
    kind: str
    route: str
    queue: str
    status: str
    """What this very transaction carries out is `done` at once."""
    cause: str


def _queue_of(command: Command) -> str:
    """Name the Dramatiq queue of a broker command, empty for any other."""
    if isinstance(command, HostLease):
        return f"device.{command.device_id}"
    return f"rollout.{command.pool}" if isinstance(command, PlayGroups) else ""


def _head(issued: IssuedCommand) -> _Head:
    command = issued.numbered.command
    queue = _queue_of(command)
    status = "done" if isinstance(command, _ROWS) else "open"
    return _Head(
        issued.numbered.epoch, command.kind, COMMAND_KINDS[command.kind].route.value, queue, status, issued.cause
    )


def _lease_of(command: Command) -> int:
    """Return the lease whose child the command is for, 0 for none."""
    return 0 if COMMAND_KINDS[command.kind].route is Route.DRIVER else getattr(command, "lease_id", 0)


def _body_of(command: Command) -> str:
    cut = isinstance(command, CutMicroBatch)
    return command.model_dump_json(exclude={"samples"} if cut else None)


def _array(values: Iterable[float]) -> str:
    """Render an array inside an array of arrays of different lengths, which no array type of the server can be."""
    return "{" + ",".join(map(repr, values)) + "}"
