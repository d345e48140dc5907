"""What the rows of a run say by themselves, for comparison with what its log led to.

Invariant: producers write rows and the fact that tells of them in one transaction, so read in one snapshot the rows
and the log with the facts still waiting agree, whoever died when. `read` costs a few index scans, whatever the length
of the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg import Connection


@dataclass(frozen=True, slots=True)
class CommittedState:
    last_command: int
    """Highest number of a command, 0 without any."""
    under_way: Mapping[int, str]
    """Commands that are open or taken, with their kinds."""
    versions: Mapping[str, tuple[int, str]]
    """Policy -> newest committed version and its digest."""
    next_micro_batches: Mapping[str, int]
    """Policy -> number that its next micro-batch gets."""
    leases: Mapping[int, str]
    """Leases that have not ended, with their states."""
    waiting: frozenset[str]
    """Kinds of the facts that nobody has handled yet."""


@dataclass(frozen=True, slots=True)
class CommandRow:
    no: int
    kind: str
    status: str


def read(conn: Connection, run_id: int) -> CommittedState:
    """Read a run's rows. Call it in the transaction, of one snapshot, that reads its log."""
    last = conn.execute("SELECT coalesce(max(no), 0) FROM store.command WHERE run_id = %s", [run_id]).fetchone()
    open_ones = conn.execute(
        "SELECT no, kind FROM store.command WHERE run_id = %s AND status IN ('open', 'taken')", [run_id]
    ).fetchall()
    versions = conn.execute(
        "SELECT DISTINCT ON (policy) policy, version, digest FROM store.policy_version "
        "WHERE run_id = %s ORDER BY policy, version DESC",
        [run_id],
    ).fetchall()
    numbers = conn.execute(
        "SELECT policy, max(no) + 1 FROM store.micro_batch WHERE run_id = %s GROUP BY policy", [run_id]
    ).fetchall()
    leases = conn.execute(
        "SELECT id, state FROM store.lease WHERE run_id = %s AND state <> 'ended' AND leader IS NULL", [run_id]
    ).fetchall()
    waiting = conn.execute("SELECT DISTINCT body ->> 'kind' FROM store.inbox WHERE run_id = %s", [run_id]).fetchall()
    assert last is not None
    return CommittedState(
        last_command=last[0],
        under_way=dict(open_ones),
        versions={policy: (version, digest) for policy, version, digest in versions},
        next_micro_batches=dict(numbers),
        leases=dict(leases),
        waiting=frozenset(row[0] for row in waiting),
    )


def rows_of(conn: Connection, run_id: int, numbers: list[int]) -> dict[int, CommandRow]:
    """Read the rows of some commands; a number without a row is left out."""
    found = conn.execute(
        "SELECT no, kind, status FROM store.command WHERE run_id = %s AND no = ANY(%s)", [run_id, numbers]
    ).fetchall()
    return {row[0]: CommandRow(*row) for row in found}


@dataclass(frozen=True, slots=True)
class DecidedCommand:
    """A command as it was decided."""

    no: int
    seq: int
    epoch: int
    kind: str
    body: str


def decided(conn: Connection, run_id: int, numbers: list[int]) -> dict[int, DecidedCommand]:
    """Read some commands as they were decided; a number without a row is left out."""
    found = conn.execute(
        "SELECT no, seq, epoch, kind, body::text FROM store.command WHERE run_id = %s AND no = ANY(%s)",
        [run_id, numbers],
    ).fetchall()
    return {row[0]: DecidedCommand(*row) for row in found}
