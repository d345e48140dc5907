"""What administrators decided about pools, and what the arbiter needs to follow it.

Invariant: the control plane alone writes bindings, quotas and weights; drivers only read them, at every arbitration. A
quota counts seats: a gang whole from its first device to its last, also while a part is lost or moves.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from psycopg import Connection


@dataclass(frozen=True, slots=True)
class QuotaRow:
    project: str
    pool: str
    devices: int
    """Held at once at most."""
    version: int


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Bindings, quotas, weights, and what is held of each pool, all of one moment."""

    bindings: dict[str, set[str]]
    """Pool -> projects that may use it. A pool that is missing is open to all."""
    quotas: list[QuotaRow]
    """By pool and project."""
    held: dict[tuple[str, str], int]
    """(project, pool) -> seats taken now."""
    now: float = 0.0
    """When this was so, in seconds since the epoch."""
    weights: dict[str, float] = field(default_factory=dict)
    """Project -> its weight; 1 when absent."""


def holders(conn: Connection, pools: Collection[str]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return (pool, project) -> (run, devices) of the runs that hold devices of some pools, most devices first."""
    rows = conn.execute(
        """
        SELECT d.pool, r.project, l.run_id, count(DISTINCT l.device_id) AS devices
        FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.run_state r USING (run_id)
        WHERE l.state <> 'ended' AND d.pool = ANY(%s) GROUP BY 1, 2, 3 ORDER BY devices DESC, l.run_id
        """,
        [list(pools)],
    ).fetchall()
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for pool, project, run_id, devices in rows:
        found.setdefault((pool, project), []).append((run_id, devices))
    return found


def rules(conn: Connection) -> PoolRules:
    """Read all that was decided about pools, in one statement."""
    rows = conn.execute(
        """
        SELECT 'bound', pool, project, 0, 0, 0::float8 FROM store.pool_binding
        UNION ALL SELECT 'now', '', '', 0, 0, extract(epoch FROM clock_timestamp())::float8
        UNION ALL SELECT 'quota', pool, project, devices, version, 0 FROM store.pool_quota
        UNION ALL SELECT 'weight', '', project, 0, 0, weight FROM store.project_weight
        UNION ALL SELECT 'held', pool, project, sum(devices), 0, 0 FROM store.seat GROUP BY pool, project
        ORDER BY 1, 2, 3
        """
    ).fetchall()
    found = PoolRules({}, [], {}, max(number for kind, *_, number in rows if kind == "now"))
    for kind, pool, project, devices, version, number in rows:
        if kind == "bound":
            found.bindings.setdefault(pool, set()).add(project)
        elif kind == "quota":
            found.quotas.append(QuotaRow(project, pool, devices, version))
        elif kind == "held":
            found.held[project, pool] = devices
        elif kind == "weight":
            found.weights[project] = number
    return found


def bind(conn: Connection, pool: str, projects: set[str]) -> None:
    """Open a pool to exactly these projects; to all when there is none. What runs there goes on."""
    with conn.transaction():
        conn.execute("DELETE FROM store.pool_binding WHERE pool = %s AND project <> ALL(%s)", [pool, list(projects)])
        conn.execute(
            "INSERT INTO store.pool_binding (pool, project) SELECT %s, unnest(%s::text[]) ON CONFLICT DO NOTHING",
            [pool, sorted(projects)],
        )


def quota(conn: Connection, project: str, pool: str) -> QuotaRow | None:
    """Read one quota and keep others from changing it until the transaction ends."""
    row = conn.execute(
        "SELECT project, pool, devices, version FROM store.pool_quota WHERE project = %s AND pool = %s FOR UPDATE",
        [project, pool],
    ).fetchone()
    return None if row is None else QuotaRow(*row)


def set_quota(conn: Connection, project: str, pool: str, devices: int) -> None:
    """Limit what a project holds of a pool at once. What it holds already stays."""
    conn.execute(
        """
        INSERT INTO store.pool_quota (project, pool, devices) VALUES (%s, %s, %s)
        ON CONFLICT (project, pool) DO UPDATE SET devices = excluded.devices,
          version = store.pool_quota.version + 1, changed_at = clock_timestamp()
        """,
        [project, pool, devices],
    )


def drop_quota(conn: Connection, project: str, pool: str) -> None:
    """Lift a limit."""
    conn.execute("DELETE FROM store.pool_quota WHERE project = %s AND pool = %s", [project, pool])


def set_price(conn: Connection, pool: str, price: float | None) -> None:
    """Say what a device hour of a pool costs from now on; None: nobody says. What it cost before stays known."""
    conn.execute(
        """
        INSERT INTO store.pool_price (pool, price) SELECT %(pool)s, %(price)s WHERE %(price)s IS DISTINCT FROM
          (SELECT price FROM store.pool_price WHERE pool = %(pool)s ORDER BY since DESC LIMIT 1)
        """,
        {"pool": pool, "price": price},
    )


def set_weight(conn: Connection, project: str, weight: float) -> None:
    """Say how much a project weighs beside others of the same priority."""
    conn.execute(
        """
        INSERT INTO store.project_weight (project, weight) VALUES (%s, %s)
        ON CONFLICT (project) DO UPDATE SET weight = excluded.weight
        """,
        [project, weight],
    )


def forget_project(conn: Connection, project: str) -> None:
    """Drop what was decided about a project that is deleted."""
    with conn.transaction():
        conn.execute("DELETE FROM store.project_weight WHERE project = %s", [project])
        conn.execute("DELETE FROM store.pool_binding WHERE project = %s", [project])
        conn.execute("DELETE FROM store.pool_quota WHERE project = %s", [project])


def forget_pool(conn: Connection, pool: str) -> None:
    """Drop the bindings and quotas of a pool that is deleted."""
    with conn.transaction():
        conn.execute("DELETE FROM store.pool_binding WHERE pool = %s", [pool])
        conn.execute("DELETE FROM store.pool_quota WHERE pool = %s", [pool])


def set_priority(conn: Connection, run_id: int, priority: int) -> int:
    """Change how soon a run is served; returns what it was."""
    row = conn.execute(
        """
        UPDATE store.run_state r SET priority = %s FROM store.run_state old
        WHERE r.run_id = %s AND old.run_id = r.run_id RETURNING old.priority
        """,
        [priority, run_id],
    ).fetchone()
    return -1 if row is None else int(row[0])


def priorities(conn: Connection, runs: list[int]) -> dict[int, int]:
    """Read how soon runs are served."""
    rows = conn.execute("SELECT run_id, priority FROM store.run_state WHERE run_id = ANY(%s)", [runs]).fetchall()
    return dict(rows)


def has_devices(conn: Connection, run_id: int) -> bool:
    """Tell whether a run holds a device, and keep it from being granted one until the transaction ends."""
    conn.execute("SELECT 1 FROM store.run_state WHERE run_id = %s FOR UPDATE", [run_id])
    row = conn.execute("SELECT 1 FROM store.lease WHERE run_id = %s AND state <> 'ended' LIMIT 1", [run_id]).fetchone()
    return row is not None
