"""Exclusive, expiring claims on devices: `held -> releasing -> ended`.

Invariants: one lease that is not ended holds a device (a unique index, so two drivers cannot both win); a second one
may share it, of the same run (a foreign key), which holds it when the first has ended (a trigger). Only who hosts
the lease writes its child; the hold is the token of the `host_lease` command, and each hosting raises the fence.
A lease ends only when its host has proved that nothing of it runs. Expiry is judged by the database's clock.
"""

from dataclasses import dataclass
from uuid import UUID

from psycopg import Connection

from flexmarl.contracts.commands import HostLease
from flexmarl.contracts.events import ChildLost, ChildReady, DeviceUse, LeaseEnded
from flexmarl.store.control.commands import Taken, guard
from flexmarl.store.control.decisions import release_lease
from flexmarl.store.control.grants import WaitingRequest, grant, open_demands
from flexmarl.store.control.inbox import put_event
from flexmarl.store.control.nodes import (
    DeviceFacts,
    DeviceRow,
    NodeFacts,
    devices_of,
    register_node,
    supply,
)
from flexmarl.store.errors import LeaseLost
from flexmarl.store.node_operations import (
    both,
    for_nodes,
    own_lease_of_run,
    run_of_lease,
    taken_command,
)
from flexmarl.store.server_paths import without_paths

__all__ = [
    "ChildEndpoint",
    "DeviceFacts",
    "DeviceRow",
    "LeaseHold",
    "NodeFacts",
    "Orphan",
    "Renewal",
    "WaitingRequest",
    "child_lost",
    "child_ready",
    "child_started",
    "devices_of",
    "end",
    "end_of_node",
    "end_orphan",
    "endpoint",
    "expire",
    "grant",
    "let_go",
    "open_demands",
    "register_node",
    "release_run",
    "renew",
    "request_release",
    "supply",
    "take_hosting",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeaseHold:
    """A device worker's hold on a lease."""

    lease_id: int
    device_id: str
    run_id: int
    use: DeviceUse
    fence: int
    token: UUID
    releasing: bool
    """True: nothing is to be started; prove the former child dead and end the lease."""
    former_pid: int | None
    former_pid_started: float
    memory_bytes: int = 0
    """Leased with each device; 0: not known."""
    further: tuple[str, ...] = ()
    """Of an engine of several devices: those beside `device_id`, by rank."""


@dataclass(frozen=True, slots=True)
class Renewal:
    held: bool
    """False: somebody else hosts the lease or it ended; stop the child and say nothing."""
    releasing: bool = False
    incarnation: str = ""
    """Empty when the store counts the child as lost."""


@dataclass(frozen=True, slots=True)
class ChildEndpoint:
    lease_id: int
    run_id: int
    device_id: str
    use: DeviceUse
    incarnation: str
    endpoint: str
    secret: str
    rendezvous: str = ""
    """host:port where the ranks of a gang meet that this trainer leads; empty: it leads none."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A lease to be released that nobody hosts any more."""

    lease_id: int
    run_id: int
    pid: int | None
    pid_started: float


@for_nodes(taken_command("taken"))
def take_hosting(conn: Connection, taken: Taken, ttl_s: float) -> LeaseHold | None:
    """Become the host of a lease under the token of its command; None when the lease has ended.

    A child that the former host left is told as lost here. Raises TokenLost.
    """
    command = taken.command
    assert isinstance(command, HostLease)
    with conn.transaction():
        guard(conn, taken)
        row = conn.execute(
            """
            SELECT device_id, run_id, use, state, pid, pid_started, incarnation, memory_bytes FROM store.lease
            WHERE id = %s AND run_id = %s AND state <> 'ended' FOR UPDATE
            """,
            [command.lease_id, taken.run_id],
        ).fetchone()
        if row is None:
            return None
        device_id, run_id, use, state, pid, pid_started, incarnation, memory = row
        further = conn.execute(
            "SELECT device_id FROM store.lease WHERE leader = %s AND state <> 'ended' ORDER BY rank", [command.lease_id]
        ).fetchall()
        fence = conn.execute(
            """
            UPDATE store.lease SET fence = fence + 1, token = %s, incarnation = '', endpoint = '', secret = '',
              expires_at = clock_timestamp() + make_interval(secs => %s)
            WHERE id = %s RETURNING fence
            """,
            [taken.token, ttl_s, command.lease_id],
        ).fetchone()
        assert fence is not None
        if incarnation:
            _put_lost(conn, run_id, command.lease_id, incarnation, "its device worker ended")
    return LeaseHold(
        command.lease_id, device_id, run_id, DeviceUse(use), fence[0], taken.token, state == "releasing", pid,
        pid_started, memory, tuple(one for (one,) in further),
    )  # fmt: skip


@for_nodes(own_lease_of_run("hosting.lease_id", "hosting.run_id"))
def renew(conn: Connection, hosting: LeaseHold, ttl_s: float) -> Renewal:
    """Extend a hosted lease and its command together; the answer says what to do next."""
    row = conn.execute(
        """
        WITH lease AS (
          UPDATE store.lease SET expires_at = clock_timestamp() + make_interval(secs => %(ttl)s)
          WHERE id = %(lease)s AND token = %(token)s AND state <> 'ended' RETURNING state, incarnation
        ), command AS (
          UPDATE store.command SET deadline = clock_timestamp() + make_interval(secs => %(ttl)s),
            next_send = clock_timestamp() + make_interval(secs => %(ttl)s)
          WHERE run_id = %(run)s AND token = %(token)s AND status = 'taken'
        )
        SELECT state, incarnation FROM lease
        """,
        {"ttl": ttl_s, "lease": hosting.lease_id, "token": hosting.token, "run": hosting.run_id},
    ).fetchone()
    return Renewal(False) if row is None else Renewal(True, row[0] == "releasing", row[1])


@for_nodes(own_lease_of_run("hosting.lease_id", "hosting.run_id"))
def child_started(conn: Connection, hosting: LeaseHold, pid: int, pid_started: float) -> None:
    """Note the child's process before it serves, so that a successor can prove it dead. Raises LeaseLost."""
    cursor = conn.execute(
        "UPDATE store.lease SET pid = %s, pid_started = %s WHERE id = %s AND token = %s AND state <> 'ended'",
        [pid, pid_started, hosting.lease_id, hosting.token],
    )
    if cursor.rowcount != 1:
        raise LeaseLost(hosting.lease_id, "hosted by somebody else")


@for_nodes(own_lease_of_run("hosting.lease_id", "hosting.run_id"))
def child_ready(
    conn: Connection, hosting: LeaseHold, incarnation: str, endpoint: str, secret: str, rendezvous: str = ""
) -> None:
    """Publish a child that answers, and tell the driver. Raises LeaseLost."""
    event = ChildReady(lease_id=hosting.lease_id, use=hosting.use, incarnation=incarnation)
    with conn.transaction():
        cursor = conn.execute(
            """
            UPDATE store.lease SET incarnation = %s, endpoint = %s, secret = %s, rendezvous = %s
            WHERE id = %s AND token = %s AND state = 'held'
            """,
            [incarnation, endpoint, secret, rendezvous, hosting.lease_id, hosting.token],
        )
        if cursor.rowcount != 1:
            raise LeaseLost(hosting.lease_id, "released or hosted by somebody else")
        put_event(conn, hosting.run_id, f"ready:{incarnation}", event)


@for_nodes(own_lease_of_run("hosting.lease_id", "hosting.run_id"))
def child_lost(conn: Connection, hosting: LeaseHold, incarnation: str, reason: str, ready: bool = True) -> None:
    """Withdraw a child that ended, and tell the driver. Does nothing when the lease has another host.

    `ready` False: it ended before it was.
    """
    with conn.transaction():
        cursor = conn.execute(
            """
            UPDATE store.lease SET incarnation = '', endpoint = '', secret = '' WHERE id = %s AND token = %s
            AND state <> 'ended'
            """,
            [hosting.lease_id, hosting.token],
        )
        if cursor.rowcount == 1:
            _put_lost(conn, hosting.run_id, hosting.lease_id, incarnation, reason, ready)


def request_release(conn: Connection, run_id: int, lease_id: int) -> None:
    """Ask for a lease's end; its host stops the child and ends it."""
    with conn.transaction():
        release_lease(conn, run_id, lease_id)


def release_run(conn: Connection, run_id: int) -> list[int]:
    """Ask for the end of every lease of a run, those included that its core never heard of."""
    rows = conn.execute(
        "SELECT id FROM store.lease WHERE run_id = %s AND state = 'held' AND leader IS NULL ORDER BY id", [run_id]
    ).fetchall()
    for row in rows:
        request_release(conn, run_id, row[0])
    return [row[0] for row in rows]


@for_nodes(own_lease_of_run("hosting.lease_id", "hosting.run_id"))
def let_go(conn: Connection, hosting: LeaseHold) -> None:
    """Stop hosting without ending the lease: the command may be taken again at once by a restarted worker."""
    with conn.transaction():
        conn.execute(
            "UPDATE store.lease SET expires_at = clock_timestamp() WHERE id = %s AND token = %s AND state <> 'ended'",
            [hosting.lease_id, hosting.token],
        )
        conn.execute(
            """
            UPDATE store.command SET status = 'open', token = NULL, deadline = NULL, sends = 0,
              next_send = clock_timestamp()
            WHERE run_id = %s AND token = %s AND status = 'taken'
            """,
            [hosting.run_id, hosting.token],
        )


@for_nodes(both(taken_command("taken"), own_lease_of_run("hosting.lease_id", "hosting.run_id")))
def end(conn: Connection, taken: Taken, hosting: LeaseHold, reason: str, cannot_start: bool = False) -> None:
    """Free the device: nothing of the lease runs. Tells the driver and finishes the command. Raises LeaseLost.

    `cannot_start`: no child of it could ever work on this host.
    """
    with conn.transaction():
        cursor = conn.execute(f"{_END} AND token = %s", [reason[:1000], hosting.lease_id, hosting.token])
        if cursor.rowcount != 1:
            raise LeaseLost(hosting.lease_id, "hosted by somebody else")
        _put_ended(conn, hosting.run_id, hosting.lease_id, reason, cannot_start)
        conn.execute(
            "UPDATE store.command SET status = 'done', done_at = clock_timestamp(), deadline = NULL "
            "WHERE run_id = %s AND no = %s AND token = %s AND status = 'taken'",
            [taken.run_id, taken.no, taken.token],
        )


_END = """
    UPDATE store.lease SET state = 'ended', ended_at = clock_timestamp(), reason = %s, incarnation = '',
      endpoint = '', secret = '', token = NULL, expires_at = clock_timestamp()
    WHERE id = %s AND state <> 'ended'"""


@for_nodes(own_lease_of_run("orphan.lease_id", "orphan.run_id"))
def end_orphan(conn: Connection, orphan: Orphan, reason: str) -> bool:
    """End a lease that nobody hosts, after its process was proved dead. False when a host came back meanwhile."""
    with conn.transaction():
        cursor = conn.execute(f"{_END} AND expires_at < clock_timestamp()", [reason[:1000], orphan.lease_id])
        if cursor.rowcount != 1:
            return False
        _put_ended(conn, orphan.run_id, orphan.lease_id, reason)
    return True


def end_of_node(conn: Connection, node: str, reason: str) -> int:
    """End all leases of a node whose host is gone, as whoever provided it says; returns how many."""
    with conn.transaction():
        rows = conn.execute(
            """
            SELECT l.id, l.run_id FROM store.lease l JOIN store.device d ON d.id = l.device_id
            WHERE d.node = %s AND l.state <> 'ended' AND l.leader IS NULL ORDER BY l.id FOR UPDATE OF l
            """,
            [node],
        ).fetchall()
        for lease_id, run_id in rows:
            conn.execute(_END, [reason[:1000], lease_id])
            _put_ended(conn, run_id, lease_id, reason)
    return len(rows)


def expire(conn: Connection, run_id: int) -> list[int]:
    """Count the children of expired leases as lost; returns their leases. Each lease stays until its node ends it."""
    with conn.transaction():
        rows = conn.execute(
            """
            SELECT id, incarnation FROM store.lease
            WHERE run_id = %s AND state <> 'ended' AND incarnation <> '' AND expires_at < clock_timestamp()
            FOR UPDATE SKIP LOCKED
            """,
            [run_id],
        ).fetchall()
        for lease_id, incarnation in rows:
            conn.execute("UPDATE store.lease SET incarnation = '', endpoint = '' WHERE id = %s", [lease_id])
            _put_lost(conn, run_id, lease_id, incarnation, "the lease expired")
    return [row[0] for row in rows]


@for_nodes(run_of_lease("lease_id"))
def endpoint(conn: Connection, lease_id: int) -> ChildEndpoint | None:
    """Read where the child of a lease answers; None while there is none."""
    row = conn.execute(
        """
        SELECT id, run_id, device_id, use, incarnation, endpoint, secret, rendezvous
        FROM store.lease WHERE id = %s AND state = 'held' AND endpoint <> ''
        """,
        [lease_id],
    ).fetchone()
    if row is None:
        return None
    found, run, device_id, use, incarnation, url, secret, rendezvous = row
    return ChildEndpoint(found, run, device_id, DeviceUse(use), incarnation, url, secret, rendezvous)


def _put_lost(conn: Connection, run_id: int, lease_id: int, incarnation: str, reason: str, ready: bool = True) -> None:
    conn.execute("DELETE FROM store.engine_policy WHERE lease_id = %s", [lease_id])
    event = ChildLost(lease_id=lease_id, incarnation=incarnation, reason=without_paths(reason)[:1000], ready=ready)
    put_event(conn, run_id, f"lost:{incarnation}", event)


def _put_ended(conn: Connection, run_id: int, lease_id: int, reason: str, cannot_start: bool = False) -> None:
    conn.execute("DELETE FROM store.engine_policy WHERE lease_id = %s", [lease_id])
    event = LeaseEnded(lease_id=lease_id, reason=without_paths(reason)[:1000], cannot_start=cannot_start)
    put_event(conn, run_id, f"ended:{lease_id}", event)
