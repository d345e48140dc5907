"""Policy versions: creation, restoration and the one step transaction.

Invariants: versions of a policy form a chain: a step's parent is the newest version, and its number is one more. A
number is never reused. Rows become `applied` in the transaction that makes the version, and only when exactly these
micro-batches were accumulated in the accumulator that stepped. The trainer's incarnation must still serve the lease.
A version is committed when its row is there, durable when the row names its training state, served where an engine says
so. What it takes to redo a step is recorded with it: its micro-batches, their entropy coefficients, its learning rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from psycopg import Connection

from flexmarl.contracts.commands import OptimizerStep
from flexmarl.contracts.events import Event, PolicyBound, StepCommitted
from flexmarl.store.control.commands import Taken, finish, guard
from flexmarl.store.control.inbox import put_event
from flexmarl.store.data import lineage, tokenizers
from flexmarl.store.errors import LeaseLost, Refused
from flexmarl.store.node_operations import both, for_nodes, own_lease, run_with_work, taken_command


@dataclass(frozen=True, slots=True)
class PolicyVersionRow:
    policy: str
    version: int
    parent: int | None
    digest: str
    state: str
    """Digest of the training state; empty when there is none."""


@dataclass(frozen=True, slots=True)
class BoundState:
    """What a trainer holds after a bind."""

    lease_id: int
    incarnation: str
    policy: str
    version: int
    digest: str
    state: str
    created: bool
    tokenizer: bytes = b""
    chat: str = ""
    """Chat format of the policy's model, as JSON; empty: it knows no messages."""
    facts: Mapping[str, float] = field(default_factory=dict)
    resumed: bool = False
    """It was suspended and goes on with what its accumulator held."""
    accumulator: str = ""
    """Epoch that the accumulator had when it was suspended."""
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRow:
    """What a trainer made of an accumulator."""

    lease_id: int
    policy: str
    accumulator: str
    micro_batches: Sequence[int]
    version: int
    digest: str
    state: str
    null_step: bool
    grad_norm: float
    learning_rate: float
    seconds: float
    durable: Mapping[int, str] = field(default_factory=dict)
    """Earlier versions whose training state is durable by now, with its digest."""

    @property
    def incarnation(self) -> str:
        """The trainer life that the accumulator belongs to."""
        return self.accumulator.partition(":")[2]


@for_nodes(run_with_work("run_id"))
def version_of(conn: Connection, run_id: int, policy: str, version: int) -> PolicyVersionRow:
    """Read a committed version. Raises Refused when there is none."""
    row = conn.execute(
        "SELECT policy, version, parent, digest, state FROM store.policy_version "
        "WHERE run_id = %s AND policy = %s AND version = %s",
        [run_id, policy, version],
    ).fetchone()
    if row is None:
        raise Refused("no_version", f"{policy} has no version {version} in run {run_id}")
    return PolicyVersionRow(*row)


@dataclass(frozen=True, slots=True)
class Applied:
    """A committed step: what it was taken on, and how."""

    version: int
    digest: str
    learning_rate: float
    micro_batches: dict[int, float]
    """Number -> entropy coefficient of its gradient."""


@for_nodes(run_with_work("run_id"))
def steps_behind_state(
    conn: Connection, run_id: int, policy: str, version: int
) -> tuple[PolicyVersionRow, list[Applied]]:
    """Return the last version up to one whose training state is durable, and the steps from there, oldest first.

    A policy that nobody trains never has such a state: then it is the version itself, without steps.
    """
    wanted = version_of(conn, run_id, policy, version)
    base = conn.execute(
        "SELECT policy, version, parent, digest, state FROM store.policy_version WHERE run_id = %s AND policy = %s "
        "AND version <= %s AND state <> '' ORDER BY version DESC LIMIT 1",
        [run_id, policy, version],
    ).fetchone()
    if base is None:
        return wanted, []
    rows = conn.execute(
        """
        SELECT v.version, v.digest, (v.facts ->> 'learning_rate')::float8,
          (SELECT jsonb_object_agg(m.no, m.stats -> 'entropy_coef') FROM store.micro_batch m
           WHERE m.run_id = v.run_id AND m.policy = v.policy AND m.version = v.version AND m.status = 'applied')
        FROM store.policy_version v
        WHERE v.run_id = %s AND v.policy = %s AND v.version > %s AND v.version <= %s ORDER BY v.version
        """,
        [run_id, policy, base[1], version],
    ).fetchall()
    steps = [
        Applied(no, digest, rate, {int(n): float(c) for n, c in (parts or {}).items()})
        for no, digest, rate, parts in rows
    ]
    return PolicyVersionRow(*base), steps


def newest_versions(conn: Connection, run_id: int) -> dict[str, PolicyVersionRow]:
    """Read the newest committed version of every policy of a run."""
    rows = conn.execute(
        "SELECT DISTINCT ON (policy) policy, version, parent, digest, state FROM store.policy_version "
        "WHERE run_id = %s ORDER BY policy, version DESC",
        [run_id],
    ).fetchall()
    return {row[0]: PolicyVersionRow(*row) for row in rows}


@for_nodes(both(taken_command("taken"), own_lease("bind.lease_id")))
def commit_bind(conn: Connection, taken: Taken, bind: BoundState) -> None:
    """Commit version 0 or confirm a restored one, tell the driver and finish the command, in one transaction.

    Raises TokenLost, EpochStale, LeaseLost, or Refused when the version's digest is another one.
    """
    event = PolicyBound(
        lease_id=bind.lease_id, incarnation=bind.incarnation, policy=bind.policy, version=bind.version,
        digest=bind.digest, created=bind.created, facts=dict(bind.facts), resumed=bind.resumed, bytes=bind.bytes,
        seconds=bind.seconds,
    )  # fmt: skip
    with conn.transaction():
        guard(conn, taken)
        _serving(conn, taken.run_id, bind.lease_id, bind.incarnation)
        if bind.created:
            conn.execute(
                """
                INSERT INTO store.policy_version (run_id, policy, version, parent, digest, state, facts)
                VALUES (%s, %s, %s, NULL, %s, %s, %s::jsonb) ON CONFLICT DO NOTHING
                """,
                [taken.run_id, bind.policy, bind.version, bind.digest, bind.state, _json(dict(bind.facts))],
            )
        stored = newest_versions(conn, taken.run_id).get(bind.policy)
        if stored is None or (stored.version, stored.digest) != (bind.version, bind.digest):
            raise Refused("version_differs", f"{bind.policy}: bound {bind.version}, committed {stored}")
        if bind.created:
            lineage.bound(conn, taken.run_id, bind.policy)
        if bind.state:
            _now_durable(conn, taken.run_id, bind.policy, {bind.version: bind.state})
        if bind.resumed:
            _goes_on(conn, taken.run_id, bind)
        if bind.tokenizer:
            tokenizers.keep(conn, taken.run_id, bind.policy, bind.tokenizer, bind.chat)
        put_event(conn, taken.run_id, f"bound:{taken.no}:{bind.incarnation}", event)
        finish(conn, taken)


@for_nodes(both(taken_command("taken"), own_lease("lease_id")))
def commit_answer(conn: Connection, taken: Taken, lease_id: int, incarnation: str, event: Event) -> None:
    """Tell the driver that a trainer did what it was asked and finish the command, in one transaction.

    Raises TokenLost, EpochStale or LeaseLost.
    """
    with conn.transaction():
        guard(conn, taken)
        _serving(conn, taken.run_id, lease_id, incarnation)
        put_event(conn, taken.run_id, f"{event.kind}:{taken.no}:{incarnation}", event)
        finish(conn, taken)


@for_nodes(both(taken_command("taken"), own_lease("step.lease_id")))
def commit_step(conn: Connection, taken: Taken, step: StepRow) -> None:
    """Apply the rows, commit the version, tell the driver and finish the command, in one transaction.

    Raises TokenLost, EpochStale, LeaseLost, or Refused when the newest version is not the parent or the accumulator
    does not hold exactly these micro-batches.
    """
    order = taken.command
    if not isinstance(order, OptimizerStep) or (order.policy, order.next_version) != (step.policy, step.version):
        text = f"command {taken.no} of run {taken.run_id} is not for v{step.version} of {step.policy}"
        raise Refused("outside_command", text)
    parent = step.version - 1
    event = StepCommitted(
        policy=step.policy, version=step.version, parent=parent, digest=step.digest, accumulator=step.accumulator,
        null_step=step.null_step, grad_norm=step.grad_norm, learning_rate=step.learning_rate, seconds=step.seconds,
    )  # fmt: skip
    with conn.transaction():
        guard(conn, taken)
        _serving(conn, taken.run_id, step.lease_id, step.incarnation)
        _apply(conn, taken.run_id, step)
        facts = {"null_step": step.null_step, "grad_norm": step.grad_norm, "seconds": step.seconds}
        facts["learning_rate"] = step.learning_rate
        cursor = conn.execute(
            """
            INSERT INTO store.policy_version (run_id, policy, version, parent, digest, state, facts)
            SELECT %(run)s, %(policy)s, %(version)s, %(parent)s, %(digest)s, %(state)s, %(facts)s::jsonb
            WHERE %(parent)s = (SELECT max(version) FROM store.policy_version
                                WHERE run_id = %(run)s AND policy = %(policy)s)
            ON CONFLICT DO NOTHING
            """,
            {
                "run": taken.run_id, "policy": step.policy, "version": step.version, "parent": parent,
                "digest": step.digest, "state": step.state, "facts": _json(facts),
            },
        )  # fmt: skip
        if cursor.rowcount != 1:
            raise Refused("version_conflict", f"{step.policy}: version {parent} is not the newest one")
        _now_durable(conn, taken.run_id, step.policy, step.durable)
        put_event(conn, taken.run_id, f"step:{step.policy}:{step.version}", event)
        finish(conn, taken)


def _goes_on(conn: Connection, run_id: int, bind: BoundState) -> None:
    """Let gradients that an accumulator held when it was suspended count under the trainer that took it up."""
    conn.execute(
        "UPDATE store.micro_batch SET accumulator = %s WHERE run_id = %s AND policy = %s AND status = 'accumulated' "
        "AND accumulator = %s",
        [f"{bind.version}:{bind.incarnation}", run_id, bind.policy, bind.accumulator],
    )


def _now_durable(conn: Connection, run_id: int, policy: str, states: Mapping[int, str]) -> None:
    """Mark versions as durable whose training state is on disk by now; a mark is never taken back."""
    for version, state in states.items():
        conn.execute(
            "UPDATE store.policy_version SET state = %s WHERE run_id = %s AND policy = %s AND version = %s "
            "AND state = ''",
            [state, run_id, policy, version],
        )


def _apply(conn: Connection, run_id: int, step: StepRow) -> None:
    cursor = conn.execute(
        """
        UPDATE store.micro_batch SET status = 'applied', version = %s, done_at = clock_timestamp()
        WHERE run_id = %s AND policy = %s AND no = ANY(%s) AND status = 'accumulated' AND accumulator = %s
        """,
        [step.version, run_id, step.policy, list(step.micro_batches), step.accumulator],
    )
    if cursor.rowcount != len(set(step.micro_batches)):
        raise Refused(
            "accumulator_differs",
            f"{step.policy}: {cursor.rowcount} of {len(set(step.micro_batches))} micro-batches are accumulated "
            f"in {step.accumulator}",
        )


def _serving(conn: Connection, run_id: int, lease_id: int, incarnation: str) -> None:
    row = conn.execute(
        "SELECT incarnation FROM store.lease WHERE id = %s AND run_id = %s AND state = 'held' FOR SHARE",
        [lease_id, run_id],
    ).fetchone()
    if row is None or row[0] != incarnation:
        raise LeaseLost(lease_id, f"not served by incarnation {incarnation} any more")


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
