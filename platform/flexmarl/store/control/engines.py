"""Which engine wholly holds which weights: the router's view. An engine's own 409 corrects it.

Invariant: a row counts only while its incarnation serves the lease, so a restarted engine holds nothing.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg import Connection

from flexmarl.contracts.events import EngineSlept, EngineWoke, PolicyUnloaded, WeightsServed
from flexmarl.contracts.hardware import Hardware
from flexmarl.contracts.plane_tokens import TokenPlane, sign
from flexmarl.contracts.wire import PolicyPin
from flexmarl.store.control.commands import Taken, finish, guard
from flexmarl.store.control.inbox import put_event
from flexmarl.store.errors import EpochStale, LeaseLost, TokenLost
from flexmarl.store.node_operations import both, for_nodes, own_lease, run_with_work, taken_command


@dataclass(frozen=True, slots=True)
class EngineRoute:
    lease_id: int
    endpoint: str
    token: str
    """Opens generation of this run, for `plane_tokens.TTL_S`; the engine's secret stays in the registry."""
    incarnation: str
    holds: dict[str, PolicyPin]
    """Policy -> version it loaded last."""
    former: dict[str, PolicyPin] = field(default_factory=dict)
    """Policy -> version it loaded before, which it still serves."""
    hardware: Hardware = Hardware.ANY
    """What its device is good at, as its node declares."""


@for_nodes(both(taken_command("taken"), own_lease("lease_id")))
def served(
    conn: Connection,
    taken: Taken,
    lease_id: int,
    incarnation: str,
    *,
    policy: str,
    version: int,
    digest: str,
    keeps: Sequence[int] = (),
    seconds: float = 0.0,
) -> None:
    """Note what an engine holds, tell the driver and finish the command, in one transaction.

    The version loaded before stays served, unless the one before that is among `keeps` and it is not.

    Raises TokenLost, EpochStale, or LeaseLost when another incarnation serves the lease by now.
    """
    event = WeightsServed(
        lease_id=lease_id, incarnation=incarnation, policy=policy, version=version, digest=digest, keeps=tuple(keeps),
        command_no=taken.no, seconds=seconds,
    )  # fmt: skip
    with conn.transaction():
        guard(conn, taken)
        cursor = conn.execute(
            """
            INSERT INTO store.engine_policy (lease_id, incarnation, policy, version, digest)
            SELECT id, incarnation, %(policy)s, %(version)s, %(digest)s FROM store.lease
            WHERE id = %(lease)s AND incarnation = %(incarnation)s AND run_id = %(run)s AND state = 'held'
            ON CONFLICT (lease_id, policy) DO UPDATE SET
              former_version = CASE WHEN engine_policy.incarnation <> excluded.incarnation THEN NULL
                WHEN engine_policy.version = excluded.version OR (
                  engine_policy.former_version = ANY(%(keeps)s) AND engine_policy.version <> ALL(%(keeps)s)
                ) THEN engine_policy.former_version
                ELSE engine_policy.version END,
              former_digest = CASE WHEN engine_policy.incarnation <> excluded.incarnation THEN NULL
                WHEN engine_policy.version = excluded.version OR (
                  engine_policy.former_version = ANY(%(keeps)s) AND engine_policy.version <> ALL(%(keeps)s)
                ) THEN engine_policy.former_digest
                ELSE engine_policy.digest END,
              incarnation = excluded.incarnation, version = excluded.version, digest = excluded.digest,
              at = clock_timestamp()
            """,
            {
                "policy": policy,
                "version": version,
                "digest": digest,
                "lease": lease_id,
                "incarnation": incarnation,
                "run": taken.run_id,
                "keeps": list(keeps),
            },
        )
        if cursor.rowcount != 1:
            raise LeaseLost(lease_id, f"not served by incarnation {incarnation} any more")
        put_event(conn, taken.run_id, f"served:{taken.no}:{incarnation}", event)
        finish(conn, taken)


@for_nodes(both(taken_command("taken"), own_lease("lease_id")))
def leaves(conn: Connection, taken: Taken, lease_id: int, policy: str | None = None) -> None:
    """Name an engine for a policy no more, or for any, before it is asked to forget: nobody sends it new turns then.

    Does nothing for a command that is not held any more.
    """
    with contextlib.suppress(TokenLost, EpochStale), conn.transaction():
        guard(conn, taken)
        _forget(conn, taken.run_id, lease_id, policy)


@for_nodes(both(taken_command("taken"), own_lease("lease_id")))
def unloaded(conn: Connection, taken: Taken, lease_id: int, incarnation: str, policy: str, seconds: float) -> None:
    """Tell the driver that an engine holds nothing of a policy and finish the command, in one transaction.

    A load that was under way when the command was prepared may have named the engine again: it is named no more.

    Raises TokenLost, EpochStale.
    """
    event = PolicyUnloaded(
        lease_id=lease_id, incarnation=incarnation, policy=policy, command_no=taken.no, seconds=seconds
    )
    with conn.transaction():
        guard(conn, taken)
        _forget(conn, taken.run_id, lease_id, policy)
        put_event(conn, taken.run_id, f"unloaded:{taken.no}:{incarnation}", event)
        finish(conn, taken)


@for_nodes(taken_command("taken"))
def turned(conn: Connection, taken: Taken, event: EngineSlept | EngineWoke) -> None:
    """Tell the driver that an engine sleeps or is awake and finish the command, in one transaction.

    Either way it holds nothing. Raises TokenLost, EpochStale.
    """
    with conn.transaction():
        guard(conn, taken)
        _forget(conn, taken.run_id, event.lease_id, None)
        put_event(conn, taken.run_id, f"{event.kind}:{taken.no}:{event.incarnation}", event)
        finish(conn, taken)


def _forget(conn: Connection, run_id: int, lease_id: int, policy: str | None) -> None:
    conn.execute(
        """
        DELETE FROM store.engine_policy p USING store.lease l
        WHERE l.id = %(lease)s AND l.run_id = %(run)s AND p.lease_id = l.id
          AND (%(policy)s::text IS NULL OR p.policy = %(policy)s)
        """,
        {"lease": lease_id, "run": run_id, "policy": policy},
    )


@for_nodes(run_with_work("run_id"))
def routes(conn: Connection, run_id: int) -> list[EngineRoute]:
    """List the living engines of a run with what each holds, in lease order."""
    rows = conn.execute(
        """
        SELECT l.id, l.endpoint, l.secret, l.incarnation, extract(epoch FROM clock_timestamp())::float8, p.policy,
          p.version, p.digest, p.former_version, p.former_digest, coalesce(d.facts ->> 'class', '')
        FROM store.lease l JOIN store.device d ON d.id = l.device_id
        LEFT JOIN store.engine_policy p ON p.lease_id = l.id AND p.incarnation = l.incarnation
        WHERE l.run_id = %s AND l.use = 'engine' AND l.state = 'held' AND l.endpoint <> ''
        ORDER BY l.id, p.policy
        """,
        [run_id],
    ).fetchall()
    found: dict[int, EngineRoute] = {}
    for lease_id, endpoint, secret, incarnation, now, policy, version, digest, former, former_digest, kind in rows:
        token = sign(secret, run_id, TokenPlane.ROLLOUT, now)
        route = found.setdefault(lease_id, EngineRoute(lease_id, endpoint, token, incarnation, {}, {}, Hardware(kind)))
        if policy is not None:
            route.holds[policy] = PolicyPin(version=version, digest=digest)
        if former is not None:
            route.former[policy] = PolicyPin(version=former, digest=former_digest)
    return list(found.values())
