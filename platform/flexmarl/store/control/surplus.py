"""Engines that runs hold above their minimum, as the arbiter may call them back."""

from dataclasses import dataclass

from psycopg import Connection

from flexmarl.contracts.status import TERMINAL


@dataclass(frozen=True, slots=True)
class SurplusRow:
    run_id: int
    lease_id: int
    devices: tuple[str, ...]
    """Ids of all devices of the engine."""
    project: str
    priority: int
    memory_bytes: int
    """Leased with each of its devices."""


def surplus(conn: Connection) -> list[SurplusRow]:
    """List the youngest engines of each elastic run, as many as it holds above its minimum.

    One that stands by for another has the seat of that one.
    """
    rows = conn.execute(
        """
        SELECT run_id, id, devices, project, priority, memory_bytes FROM (
          SELECT l.run_id, l.id, l.memory_bytes, r.project, r.priority,
            ARRAY(SELECT x.device_id FROM store.lease x
                  WHERE x.run_id = l.run_id AND (x.id = l.id OR x.leader = l.id) AND x.state = 'held'
                  ORDER BY x.rank) AS devices,
            row_number() OVER (PARTITION BY l.run_id ORDER BY l.id) AS place,
            (r.spec #>> '{resources,rollout_devices,min}')::int
              / coalesce((r.spec #>> '{resources,engine_devices}')::int, 1) AS least
          FROM store.lease l JOIN store.run_state r USING (run_id)
          WHERE l.state = 'held' AND l.use = 'engine' AND l.leader IS NULL AND r.status <> ALL(%(ended)s)
            AND r.spec #>> '{resources,rollout_devices,min}' IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM store.lease old
                            WHERE old.id = l.replaces AND old.run_id = l.run_id AND old.state = 'held')
        ) engine WHERE place > least ORDER BY id DESC
        """,
        {"ended": [status.value for status in TERMINAL]},
    ).fetchall()
    return [SurplusRow(run, lease, tuple(devices), *rest) for run, lease, devices, *rest in rows]
