"""Device requests that wait, and their answers: a gang's leases in one transaction.

Invariants: one lease that is not ended per device (a unique index, so two drivers cannot both win); a grant counts its
project's leases under the lock of its quota, so two drivers cannot exceed it together; grants take devices in one
order, so two of them never wait for each other. Nothing is held while a gang waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.errors import UniqueViolation

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.events import DevicesGranted, DeviceUse, GrantedDevice
from flexmarl.contracts.status import TERMINAL
from flexmarl.store.commands import finish_driver
from flexmarl.store.errors import FenceLost
from flexmarl.store.inbox import put_event
from flexmarl.store.runs import RunLease


@dataclass(frozen=True, slots=True)
class Demand:
    """A device request that waits for its answer."""

    run_id: int
    no: int
    request: RequestDevices
    project: str = "default"
    priority: int = 50
    since: float = 0.0
    """When the run began to wait, in seconds since the epoch."""
    running: bool = False
    """The run holds devices, or had all of them and lost or moves one."""
    replaces: bool = False
    """The device asked for stands in for one that the run still holds."""


def open_demands(conn: Connection) -> list[Demand]:
    """List the device requests that wait, over all runs, oldest first."""
    rows = conn.execute(
        """
        SELECT c.run_id, c.no, c.body::text, r.project, r.priority,
          extract(epoch FROM CASE WHEN r.status IN ('queued', 'resuming') THEN r.status_since
                                  ELSE c.created_at END)::float8,
          r.status NOT IN ('queued', 'resuming')
            OR EXISTS (SELECT 1 FROM store.lease l WHERE l.run_id = c.run_id AND l.state = 'held'),
          EXISTS (SELECT 1 FROM store.lease l WHERE l.run_id = c.run_id AND l.state = 'held'
                  AND l.id = (c.body ->> 'replaces')::bigint)
        FROM store.command c JOIN store.run_state r USING (run_id)
        WHERE c.kind = 'request_devices' AND c.status = 'open' AND r.status <> ALL(%s)
        ORDER BY c.created_at, c.run_id
        """,
        [[status.value for status in TERMINAL]],
    ).fetchall()
    return [
        Demand(run_id, no, RequestDevices.model_validate_json(body), project, priority, since, running, replaces)
        for run_id, no, body, project, priority, since, running, replaces in rows
    ]


def grant(
    conn: Connection, lease: RunLease, no: int, placements: Sequence[tuple[str, DeviceUse]]
) -> tuple[GrantedDevice, ...] | None:
    """Answer a device request with exactly these devices; None when one is not free any more, or the quota is full.

    Writes the leases and `DevicesGranted`, and finishes the command, in one transaction. Raises FenceLost when the run
    has another driver.
    """
    try:
        with conn.transaction():
            held = conn.execute(
                "SELECT 1 FROM store.run_state WHERE run_id = %s AND owner = %s AND fence = %s FOR SHARE",
                [lease.run_id, lease.owner, lease.fence],
            ).fetchone()
            if held is None:
                raise FenceLost(lease.run_id, lease.owner, lease.fence)
            if not finish_driver(conn, lease.run_id, no):
                return None
            order = sorted(placements)
            leased = {device_id: _grant_one(conn, lease.run_id, device_id, use) for device_id, use in order}
            _hold_quota(conn, lease.run_id, no, [device_id for device_id, _ in order])
            granted = tuple(leased[device_id] for device_id, _ in placements)
            key = "granted:" + ",".join(str(one.lease_id) for one in granted)
            put_event(conn, lease.run_id, key, DevicesGranted(leases=granted, command_no=no))
    except (UniqueViolation, _QuotaFull):
        return None  # another driver leased one of them, or the rest of the quota, between the look and the insert
    return granted


class _QuotaFull(Exception):
    """A grant would take its project above a quota."""


def _hold_quota(conn: Connection, run_id: int, no: int, devices: Sequence[str]) -> None:
    """Raise _QuotaFull when a project holds more of a pool than it may, its new leases counted.

    Whoever grants to the same project waits here for the other's commit. A device that stands in for one that the run
    still holds is not counted: that one is given back.
    """
    quotas = conn.execute(
        """
        SELECT q.project, q.pool, q.devices FROM store.pool_quota q
        WHERE q.project = (SELECT project FROM store.run_state WHERE run_id = %(run)s)
          AND q.pool IN (SELECT pool FROM store.device WHERE id = ANY(%(devices)s))
          AND NOT EXISTS (SELECT 1 FROM store.command c JOIN store.lease l ON l.run_id = c.run_id
                          AND l.id = (c.body ->> 'replaces')::bigint AND l.state = 'held'
                          WHERE c.run_id = %(run)s AND c.no = %(no)s)
        ORDER BY q.pool FOR UPDATE OF q
        """,
        {"run": run_id, "no": no, "devices": list(devices)},
    ).fetchall()
    for project, pool, limit in quotas:
        row = conn.execute(
            """
            SELECT count(*) FROM store.lease l JOIN store.device d ON d.id = l.device_id
            JOIN store.run_state r USING (run_id)
            WHERE l.state <> 'ended' AND d.pool = %s AND r.project = %s
            """,
            [pool, project],
        ).fetchone()
        if row is not None and row[0] > limit:
            raise _QuotaFull


def _grant_one(conn: Connection, run_id: int, device_id: str, use: DeviceUse) -> GrantedDevice:
    row = conn.execute(
        "INSERT INTO store.lease (device_id, run_id, use) VALUES (%s, %s, %s) RETURNING id",
        [device_id, run_id, use.value],
    ).fetchone()
    assert row is not None
    return GrantedDevice(lease_id=row[0], device_id=device_id, use=use)
