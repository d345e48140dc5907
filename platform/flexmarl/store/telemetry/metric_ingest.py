"""Points that a script adds to a run. The caller has checked names and values.

A point is known by (run, name, agent, stat, step): sent again, the last one wins. Batches of one run come one after the
other, so two of them cannot wait for each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import Connection

from flexmarl.contracts.decisions import Metric
from flexmarl.store.control.attempts import Timed

_LOCK = 0x5E2135
"""First half of the advisory lock's number; the second is the run's."""


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What a batch did."""

    added: int
    replaced: int


def put_points(conn: Connection, run_id: int, points: Sequence[Timed[Metric]]) -> IngestResult:
    """Write a batch; of several points with one key the last counts."""
    newest = {(p.name, p.agent, p.stat, p.step): (at, p) for at, p in points}
    rows = [newest[key] for key in sorted(newest)]
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s, %s)", [_LOCK, run_id % 2**31])
        found = conn.execute(
            """
            WITH put AS (
              INSERT INTO store.metric AS m (run_id, name, agent, stat, step, value, at, samples)
              SELECT %s, p.name, p.agent, p.stat, p.step, p.value, to_timestamp(p.at), p.samples
              FROM unnest(%s::text[], %s::text[], %s::text[], %s::int[], %s::float8[], %s::float8[], %s::bigint[])
                AS p(name, agent, stat, step, value, at, samples)
              ON CONFLICT (run_id, name, agent, stat, step)
              DO UPDATE SET value = excluded.value, at = excluded.at, samples = excluded.samples
              RETURNING (xmax = 0) AS added)
            SELECT count(*) FILTER (WHERE added), count(*) FILTER (WHERE NOT added) FROM put
            """,
            [
                run_id, [p.name for _, p in rows], [p.agent for _, p in rows], [p.stat for _, p in rows],
                [p.step for _, p in rows], [p.value for _, p in rows], [at for at, _ in rows],
                [p.samples for _, p in rows],
            ],
        ).fetchone()  # fmt: skip
    assert found is not None
    return IngestResult(*found)
