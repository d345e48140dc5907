"""How far each cohort of a run is, read off the rows: its groups, its micro-batches and what was ruled on it.

Reads only; every query carries the run and a range of cohort numbers. A cohort is known from the first command that
plays one of its groups; a group is settled when all its members have episode rows, which are written at once or, where
episodes settle one by one, as they end.
A group whose command was withdrawn before it settled is none of the cohort: a resumed or new attempt asks for it, or
for others, again.
"""

from dataclasses import dataclass

from psycopg import Connection


@dataclass(frozen=True, slots=True)
class CohortGroups:
    """What was asked for a cohort and what of it settled. Times in seconds since the epoch."""

    cohort: int
    opened_at: float
    taken_at: float | None
    """When the first worker took a part of it."""
    pins: dict[str, int]
    groups: int
    settled: int
    episodes: int
    failed: int
    settled_at: float | None
    """When its newest episode ended."""


@dataclass(frozen=True, slots=True)
class CohortBatches:
    """One policy's micro-batches of a cohort, by status; `rows` are all of them."""

    cohort: int
    policy: str
    rows: int
    cut: int
    accumulated: int
    applied: int
    void: int
    version: int | None
    done_at: float | None
    replayed: int = 0
    """Of the rows: those that an earlier cohort was trained on as well, or that were imported."""
    imported: int = 0
    """Of the replayed ones: rows of another run."""


@dataclass(frozen=True, slots=True)
class CohortRuling:
    cohort: int
    kind: str
    count: int
    rows: int


def newest(conn: Connection, run_id: int) -> int:
    """Return the highest number of a cohort that was asked for, -1 before the first."""
    row = conn.execute(
        "SELECT coalesce(max((body ->> 'cohort')::int), -1) FROM store.command "
        "WHERE run_id = %s AND kind = 'play_groups'",
        [run_id],
    ).fetchone()
    assert row is not None
    return int(row[0])


def groups(conn: Connection, run_id: int, low: int, high: int) -> list[CohortGroups]:
    """Read the cohorts of a range, newest first."""
    rows = conn.execute(
        """
        WITH asked AS (
          SELECT (c.body ->> 'cohort')::int AS cohort, min(c.created_at) AS opened_at, min(c.taken_at) AS taken_at,
            (array_agg(c.body -> 'pins' ORDER BY c.no))[1] AS pins, count(DISTINCT g ->> 'draw') AS groups,
            max((g ->> 'members')::int) AS members
          FROM store.command c CROSS JOIN LATERAL jsonb_array_elements(c.body -> 'groups') g
          WHERE c.run_id = %(run)s AND c.kind = 'play_groups' AND c.body ->> 'origin' <> 'eval'
            AND (c.body ->> 'cohort')::int BETWEEN %(low)s AND %(high)s
            AND (c.status <> 'void' OR EXISTS (SELECT 1 FROM store.episode e
              WHERE e.run_id = c.run_id AND e.draw = (g ->> 'draw')::int))
          GROUP BY 1
        ), drawn AS (
          SELECT cohort, draw, count(*) AS episodes, count(*) FILTER (WHERE status <> 'finished') AS failed,
            max(finished_at) AS settled_at
          FROM store.episode
          WHERE run_id = %(run)s AND cohort BETWEEN %(low)s AND %(high)s AND origin = 'train' GROUP BY 1, 2
        ), played AS (
          SELECT d.cohort, count(*) FILTER (WHERE d.episodes >= a.members) AS settled,
            sum(d.episodes)::bigint AS episodes, sum(d.failed)::bigint AS failed, max(d.settled_at) AS settled_at
          FROM drawn d JOIN asked a USING (cohort) GROUP BY 1
        )
        SELECT a.cohort, extract(epoch FROM a.opened_at)::float8, extract(epoch FROM a.taken_at)::float8,
          (SELECT coalesce(jsonb_object_agg(p.key, p.value -> 'version'), '{}') FROM jsonb_each(a.pins) p), a.groups,
          coalesce(p.settled, 0), coalesce(p.episodes, 0), coalesce(p.failed, 0),
          extract(epoch FROM p.settled_at)::float8
        FROM asked a LEFT JOIN played p USING (cohort) ORDER BY a.cohort DESC
        """,
        {"run": run_id, "low": low, "high": high},
    ).fetchall()
    return [CohortGroups(*row) for row in rows]


def batches(conn: Connection, run_id: int, low: int, high: int) -> list[CohortBatches]:
    """Count the micro-batches of a range of cohorts, per policy and status."""
    rows = conn.execute(
        """
        SELECT cohort, policy, sum(cardinality(weights))::bigint,
          count(*) FILTER (WHERE status = 'cut'), count(*) FILTER (WHERE status = 'accumulated'),
          count(*) FILTER (WHERE status = 'applied'), count(*) FILTER (WHERE status = 'void'), max(version),
          extract(epoch FROM max(done_at))::float8,
          coalesce(sum(cardinality(weights)) FILTER (WHERE replayed), 0)::bigint,
          coalesce(sum((SELECT count(*) FROM jsonb_array_elements(keys) AS k(key) WHERE (k.key ->> 0)::int < 0))
            FILTER (WHERE replayed), 0)::bigint
        FROM store.micro_batch WHERE run_id = %s AND cohort BETWEEN %s AND %s GROUP BY 1, 2 ORDER BY 1, 2
        """,
        [run_id, low, high],
    ).fetchall()
    return [CohortBatches(*row) for row in rows]


def of_group(conn: Connection, run_id: int, cohort: int, draw: int) -> list[tuple[str, str]]:
    """Return what was ruled on a group of a cohort, as kind and reason, in order."""
    rows = conn.execute(
        "SELECT kind, reason FROM store.ruling WHERE run_id = %s AND cohort = %s AND target = %s ORDER BY seq, ord",
        [run_id, cohort, f"draw:{draw}"],
    ).fetchall()
    return [(str(kind), str(reason)) for kind, reason in rows]


def rulings(conn: Connection, run_id: int, low: int, high: int) -> list[CohortRuling]:
    """Count what was ruled on a range of cohorts, by kind."""
    rows = conn.execute(
        """
        SELECT cohort, kind, count(*), sum(rows)::bigint FROM store.ruling
        WHERE run_id = %s AND cohort BETWEEN %s AND %s GROUP BY 1, 2
        """,
        [run_id, low, high],
    ).fetchall()
    return [CohortRuling(*row) for row in rows]
