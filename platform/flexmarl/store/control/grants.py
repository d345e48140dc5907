"""Device requests that wait, and their answers: a gang's leases in one transaction.

Invariants: one lease that is not ended holds a device (a unique index, so two drivers cannot both win), and at most one
more of its run shares it (a foreign key and another index); a grant of a gang
counts its project's seats under the lock of its quota, so two drivers cannot exceed it together; grants take devices,
then quotas, each in one order, so two of them never wait for each other. Nothing is held while a first gang waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection
from psycopg.errors import UniqueViolation

from flexmarl.contracts.commands import RequestDevices
from flexmarl.contracts.events import DevicesGranted, DeviceUse, GrantedDevice
from flexmarl.contracts.status import TERMINAL
from flexmarl.store.control import leased_memory
from flexmarl.store.control.commands import finish_driver
from flexmarl.store.control.inbox import put_event
from flexmarl.store.control.leased_memory import MemoryLeased
from flexmarl.store.control.nodes import ALIVE_S
from flexmarl.store.control.runs import RunLease
from flexmarl.store.errors import FenceLost


@dataclass(frozen=True, slots=True)
class WaitingRequest:
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
    holds: Mapping[str, int] | None = None
    """Pool -> devices in service that the run holds; None when it holds none at all."""
    stalled: bool = False
    """The run holds no engine or no trainer, and asks for one."""
    engine: str = ""
    """Rollout engine that the run's nodes must have; empty: any will do."""
    spec: str = ""
    """The run's specification as JSON."""

    @property
    def extra(self) -> bool:
        """Tell whether it is for an engine above the run's minimum, which nobody waits for."""
        return self.request.extra


def open_demands(conn: Connection) -> list[WaitingRequest]:
    """List the device requests that wait, over all runs, oldest first."""
    rows = conn.execute(
        """
        SELECT c.run_id, c.no, c.body::text, r.project, r.priority,
          extract(epoch FROM CASE WHEN r.status IN ('queued', 'resuming') THEN r.status_since
                                  ELSE c.created_at END)::float8,
          r.status NOT IN ('queued', 'resuming')
            OR EXISTS (SELECT 1 FROM store.lease l WHERE l.run_id = c.run_id AND l.state = 'held'),
          EXISTS (SELECT 1 FROM store.lease l WHERE l.run_id = c.run_id AND l.state = 'held'
                  AND l.id = (c.body ->> 'replaces')::bigint),
          own.holds, own.uses, coalesce(r.spec #>> '{resources,engine}', ''), r.spec::text
        FROM store.command c JOIN store.run_state r USING (run_id)
        LEFT JOIN LATERAL (
          SELECT jsonb_object_agg(x.pool, x.in_service) AS holds, array_agg(DISTINCT used) AS uses
          FROM (
            SELECT d.pool, array_agg(DISTINCT l.use) AS uses, count(*) FILTER (
              WHERE l.beside IS NULL AND d.state = 'ready' AND n.state = 'ready'
                AND n.heartbeat_at > clock_timestamp() - make_interval(secs => %(alive)s)) AS in_service
            FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.node n ON n.name = d.node
            WHERE l.run_id = c.run_id AND l.state = 'held' GROUP BY d.pool
          ) x, unnest(x.uses) AS used
        ) own ON true
        WHERE c.kind = 'request_devices' AND c.status = 'open' AND r.status <> ALL(%(ended)s)
        ORDER BY c.created_at, c.run_id
        """,
        {"alive": ALIVE_S, "ended": [status.value for status in TERMINAL]},
    ).fetchall()
    return [_demand(*row) for row in rows]


def _demand(
    run_id: int, no: int, body: str, project: str, priority: int, since: float, running: bool, replaces: bool,
    holds: Mapping[str, int] | None, uses: Sequence[str] | None, engine: str, spec: str,
) -> WaitingRequest:  # fmt: skip
    request = RequestDevices.model_validate_json(body)
    trainers = request.trainers + request.beside
    wanted = {DeviceUse.ENGINE.value: request.engines, DeviceUse.TRAINER.value: trainers}
    stalled = any(count and use not in (uses or ()) for use, count in wanted.items())
    return WaitingRequest(
        run_id, no, request, project, priority, since, running, replaces, holds, stalled, engine, spec
    )


def grant(
    conn: Connection,
    lease: RunLease,
    no: int,
    placements: Sequence[tuple[str, DeviceUse]],
    memory: Mapping[str, int] | None = None,
) -> tuple[GrantedDevice, ...] | None:
    """Answer a device request with exactly these devices; None when one is not free any more, or the quota is full.

    Of engines of several devices, those of each follow each other. Trainers that are to share devices are put beside
    the first engines. `memory` is leased with each device, in bytes;
    where another driver leased what was left, the answer is None as well.

    Writes the leases and `DevicesGranted`, and finishes the command, in one transaction. Raises FenceLost when the run
    has another driver.
    """
    try:
        with conn.transaction():
            held = conn.execute(
                "SELECT EXISTS (SELECT 1 FROM store.lease l WHERE l.run_id = r.run_id AND l.state = 'held') "
                "FROM store.run_state r WHERE run_id = %s AND owner = %s AND fence = %s FOR SHARE OF r",
                [lease.run_id, lease.owner, lease.fence],
            ).fetchone()
            if held is None:
                raise FenceLost(lease.run_id, lease.owner, lease.fence)
            if not finish_driver(conn, lease.run_id, no):
                return None
            extra = conn.execute(
                "SELECT body ? 'extra' FROM store.command WHERE run_id = %s AND no = %s", [lease.run_id, no]
            ).fetchone()
            order = sorted(placements)
            leased = {device_id: _grant_one(conn, lease.run_id, no, device_id, use) for device_id, use in order}
            if memory:
                leased_memory.take(conn, memory)
            if not held[0] or (extra and extra[0]):
                # Else its gang is counted already, and no quota that was lowered splits it.
                _hold_quota(conn, lease.run_id, [device_id for device_id, _ in order])
            granted = _grant_further(conn, lease.run_id, no, [leased[device_id] for device_id, _ in placements])
            granted += _grant_beside(conn, lease.run_id, no, granted)
            key = "granted:" + ",".join(str(one.lease_id) for one in granted)
            put_event(conn, lease.run_id, key, DevicesGranted(leases=granted, command_no=no))
    except (UniqueViolation, _QuotaFull, MemoryLeased):
        return None  # another driver leased one of them, or what was left of a quota or a memory, since the look
    return granted


class _QuotaFull(Exception):
    """A grant would take its project above a quota."""


def _hold_quota(conn: Connection, run_id: int, devices: Sequence[str]) -> None:
    """Raise _QuotaFull when a project has more seats of a pool than it may, a new gang counted.

    Whoever grants to the same project waits here for the other's commit.
    """
    quotas = conn.execute(
        """
        SELECT q.project, q.pool, q.devices FROM store.pool_quota q
        WHERE q.project = (SELECT project FROM store.run_state WHERE run_id = %(run)s)
          AND q.pool IN (SELECT pool FROM store.device WHERE id = ANY(%(devices)s))
        ORDER BY q.pool FOR UPDATE OF q
        """,
        {"run": run_id, "devices": list(devices)},
    ).fetchall()
    for project, pool, limit in quotas:
        row = conn.execute(
            "SELECT coalesce(sum(devices), 0) FROM store.seat WHERE pool = %s AND project = %s", [pool, project]
        ).fetchone()
        if row is not None and row[0] > limit:
            raise _QuotaFull


def _grant_beside(
    conn: Connection, run_id: int, no: int, granted: Sequence[GrantedDevice]
) -> tuple[GrantedDevice, ...]:
    """Put as many trainers as are asked for beside the first engines."""
    rows = conn.execute(
        """
        INSERT INTO store.lease (device_id, run_id, use, beside)
        SELECT l.device_id, l.run_id, 'trainer', l.id FROM store.lease l
        WHERE l.run_id = %(run)s AND l.id = ANY(%(engines)s)
        ORDER BY array_position(%(engines)s, l.id)
        LIMIT (SELECT coalesce((body ->> 'beside')::int, 0) FROM store.command WHERE run_id = %(run)s AND no = %(no)s)
        RETURNING id, device_id, beside
        """,
        {
            "run": run_id,
            "no": no,
            "engines": [one.lease_id for one in granted if one.use is DeviceUse.ENGINE],
        },
    ).fetchall()
    return tuple(
        GrantedDevice(lease_id=lease_id, device_id=device_id, use=DeviceUse.TRAINER, beside=beside)
        for lease_id, device_id, beside in rows
    )


def _grant_further(
    conn: Connection, run_id: int, no: int, leased: Sequence[GrantedDevice]
) -> tuple[GrantedDevice, ...]:
    """Make one of the leases of each engine: the first one names the others' devices."""
    row = conn.execute(
        "SELECT coalesce((body ->> 'engine_devices')::int, 1) FROM store.command WHERE run_id = %s AND no = %s",
        [run_id, no],
    ).fetchone()
    each = row[0] if row is not None else 1
    if each == 1:
        return tuple(leased)
    engines = [one for one in leased if one.use is DeviceUse.ENGINE]
    found = []
    for first, *further in (engines[at : at + each] for at in range(0, len(engines), each)):
        for rank, one in enumerate(further, start=1):
            query = "UPDATE store.lease SET leader = %s, rank = %s WHERE id = %s"
            conn.execute(query, [first.lease_id, rank, one.lease_id])
        found.append(first.model_copy(update={"further": tuple(one.device_id for one in further)}))
    return (*found, *(one for one in leased if one.use is not DeviceUse.ENGINE))


def _grant_one(conn: Connection, run_id: int, no: int, device_id: str, use: DeviceUse) -> GrantedDevice:
    row = conn.execute(
        """
        INSERT INTO store.lease (device_id, run_id, use, replaces)
        SELECT %s, run_id, %s, coalesce((body ->> 'replaces')::bigint, 0) FROM store.command
        WHERE run_id = %s AND no = %s RETURNING id
        """,
        [device_id, use.value, run_id, no],
    ).fetchone()
    assert row is not None
    return GrantedDevice(lease_id=row[0], device_id=device_id, use=use)
