"""What the rows of an ended run tell about how fast everything of it was: raw times, without a judgement.

Reads only; every query carries the run. Times are seconds. Of long runs the newest `MOST` rows of a kind are read, so a
look costs about the same however long a run was.
"""

from psycopg import Connection

from flexmarl.contracts.timings import (
    CohortRollout,
    CommandDelay,
    Commanded,
    Decoded,
    RunRows,
    Settled,
    TurnLengths,
    Worked,
)
from flexmarl.store.data.spans import EACH_TURN
from flexmarl.store.reads import activity

MOST = 4000


def ended(conn: Connection, limit: int) -> list[tuple[int, dict[str, object]]]:
    """List the newest ended runs that made some steps, with their specifications."""
    rows = conn.execute(
        """
        SELECT run_id, spec FROM store.run_state
        WHERE finished_at IS NOT NULL AND step >= 3 ORDER BY finished_at DESC LIMIT %s
        """,
        [limit],
    ).fetchall()
    return [(int(run_id), spec) for run_id, spec in rows]


def device_kinds(conn: Connection, run_id: int) -> dict[str, str]:
    """Return what a run's engines and trainers were on: use -> kind and name of the device."""
    rows = conn.execute(
        """
        SELECT DISTINCT ON (l.use) l.use, d.kind || ' ' || d.name
        FROM store.lease l JOIN store.device d ON d.id = l.device_id WHERE l.run_id = %s ORDER BY l.use, l.id
        """,
        [run_id],
    ).fetchall()
    return dict(rows)


def read(conn: Connection, run_id: int, since: float | None = None) -> RunRows:
    """Read what a run tells since a moment, in seconds since the epoch.

    None: since its steps count (`activity.served_steps`); then its episodes are all read, those before among them.
    """
    newest = None if since is None else _first_draw(conn, run_id, since)
    if since is None:
        counted = activity.served_steps(conn, run_id)
        since = counted[0] if counted is not None else 0.0
    return RunRows(
        decoded=_decoded(conn, run_id, since),
        commanded=_commanded(conn, run_id, since),
        settled=_settled(conn, run_id, since),
        lasted=_lasted(conn, run_id, since),
        parameters=_parameters(conn, run_id),
        roles=_roles(conn, run_id, newest),
        turns=_turns(conn, run_id, newest),
        played=_played(conn, run_id, since),
        open=_open(conn, run_id, since),
        generated=_generated(conn, run_id, since),
        picked_up=_taken_after(conn, run_id, since, "play_groups"),
        hops=_taken_after(conn, run_id, since, "load_weights"),
        starts=_starts(conn, run_id),
        worked=_worked(conn, run_id, since),
        cores=_cores(conn, run_id),
    )


def _decoded(conn: Connection, run_id: int, since: float) -> list[Decoded]:
    rows = conn.execute(
        """
        SELECT i.policy, i.steps, i.tokens, i.prompts, i.t1 - i.t0, i.t0, CASE d.kind WHEN 'cpu' THEN i.cpu ELSE 0 END
        FROM store.interval i JOIN store.device d ON d.id = i.device_id
        WHERE i.run_id = %s AND i.phase = 'rollout' AND i.steps > 0 AND i.t0 >= %s ORDER BY i.t1 DESC LIMIT %s
        """,
        [run_id, since, MOST],
    ).fetchall()
    return [Decoded(*row) for row in rows]


def _open(conn: Connection, run_id: int, since: float) -> list[tuple[float, float]]:
    rows = conn.execute(
        """
        SELECT extract(epoch FROM taken_at)::float8, extract(epoch FROM done_at)::float8 FROM store.command
        WHERE run_id = %s AND kind = 'play_groups' AND done_at >= to_timestamp(%s) AND taken_at IS NOT NULL
        ORDER BY no DESC LIMIT %s
        """,
        [run_id, since, MOST],
    ).fetchall()
    return [(float(taken), float(done)) for taken, done in rows]


def _generated(conn: Connection, run_id: int, since: float) -> list[tuple[float, float]]:
    rows = conn.execute(
        """
        SELECT i.t0, i.t1 FROM store.interval i JOIN store.lease l ON l.id = i.lease_id
        WHERE i.run_id = %s AND i.phase = 'rollout' AND i.t0 >= %s AND l.leader IS NULL ORDER BY i.t1 DESC LIMIT %s
        """,
        [run_id, since, MOST],
    ).fetchall()
    return [(float(t0), float(t1)) for t0, t1 in rows]


def _commanded(conn: Connection, run_id: int, since: float) -> list[Commanded]:
    """Read a trainer's work; gradients that a later epoch asked for again count once for each time."""
    rows = conn.execute(
        """
        SELECT c.lease_id, c.kind, c.body->>'policy', extract(epoch FROM c.created_at)::float8,
          extract(epoch FROM c.done_at)::float8,
          coalesce((m.stats->>'seconds')::float8, (s.body->>'seconds')::float8),
          coalesce((m.stats->>'rows')::int, 0), coalesce((m.stats->>'tokens')::int, 0),
          coalesce(extract(epoch FROM s.at)::float8, 0.0)
        FROM store.command c
          LEFT JOIN store.micro_batch m ON c.kind = 'accumulate' AND m.run_id = c.run_id
            AND m.policy = c.body->>'policy' AND m.no = (c.body->>'micro_batch')::int
          LEFT JOIN store.event s ON c.kind = 'optimizer_step' AND s.run_id = c.run_id AND s.kind = 'step_committed'
            AND s.body->>'policy' = c.body->>'policy' AND s.body->'version' = c.body->'next_version'
        WHERE c.run_id = %s AND c.kind IN ('accumulate', 'optimizer_step') AND c.status = 'done'
          AND c.done_at IS NOT NULL AND c.created_at >= to_timestamp(%s)
        ORDER BY c.no DESC LIMIT %s
        """,
        [run_id, since, MOST],
    ).fetchall()
    return [Commanded(*row) for row in rows if row[5]]


def _settled(conn: Connection, run_id: int, since: float) -> list[Settled]:
    """Read when groups were over, and when the driver was done with that: many facts are decided on together."""
    rows = conn.execute(
        """
        SELECT (e.body->>'finished_at')::float8, extract(epoch FROM coalesce(c.at, e.at))::float8
        FROM store.event e
          LEFT JOIN (SELECT seq, min(created_at) AS at FROM store.command WHERE run_id = %(run)s GROUP BY seq) c
            ON c.seq = e.seq
        WHERE e.run_id = %(run)s AND e.kind = 'group_settled' AND e.at >= to_timestamp(%(since)s)
        ORDER BY e.seq DESC LIMIT %(most)s
        """,
        {"run": run_id, "since": since, "most": MOST},
    ).fetchall()
    return [Settled(*row) for row in reversed(rows)]


def _lasted(conn: Connection, run_id: int, since: float) -> dict[tuple[str, str], list[float]]:
    rows = conn.execute(
        """
        SELECT phase, policy, array_agg(t1 - t0) FROM (
          SELECT phase, policy, t0, t1 FROM store.interval
          WHERE run_id = %s AND phase IN ('bind', 'suspend', 'resume') ORDER BY t1 DESC LIMIT %s) i
        GROUP BY phase, policy
        """,
        [run_id, MOST],
    ).fetchall()
    loads = conn.execute(
        """
        SELECT body->>'policy', array_agg(extract(epoch FROM done_at - taken_at)::float8) FROM store.command
        WHERE run_id = %s AND kind = 'load_weights' AND status = 'done' AND takes <= 1
          AND created_at >= to_timestamp(%s)
        GROUP BY body->>'policy'
        """,
        [run_id, since],
    ).fetchall()
    told = {(phase, policy): list(seconds) for phase, policy, seconds in rows}
    return told | {("load", policy): list(seconds) for policy, seconds in loads}


def _parameters(conn: Connection, run_id: int) -> dict[str, int]:
    rows = conn.execute(
        """
        SELECT body->>'policy', (body->'facts'->>'parameters')::float8 FROM store.event
        WHERE run_id = %s AND kind = 'policy_bound' AND body->'facts' ? 'parameters'
        """,
        [run_id],
    ).fetchall()
    return {policy: int(count) for policy, count in rows}


def _first_draw(conn: Connection, run_id: int, since: float) -> int | None:
    """Return the first draw of the training episodes that began since a moment; None: none did."""
    row = conn.execute(
        """
        SELECT min(draw) FROM store.episode WHERE run_id = %s AND origin = 'train' AND started_at >= to_timestamp(%s)
        """,
        [run_id, since],
    ).fetchone()
    return None if row is None else row[0]


def _roles(conn: Connection, run_id: int, first: int | None) -> list[TurnLengths]:
    rows = conn.execute(
        f"""
        SELECT role, avg(n_prompt)::float8, avg(n_response)::float8, coalesce(stddev(n_response), 0)::float8
        FROM (SELECT s.role, t.n_prompt, t.n_response FROM store.sample s, {EACH_TURN}
              WHERE s.run_id = %(run)s AND s.draw >= coalesce(%(first)s::int, 0) LIMIT %(most)s) s
        GROUP BY role
        """.encode(),
        {"run": run_id, "first": first, "most": 10 * MOST},
    ).fetchall()
    return [TurnLengths(*row) for row in rows]


def _turns(conn: Connection, run_id: int, first: int | None) -> tuple[float, float, float]:
    row = conn.execute(
        """
        WITH finished AS (
          SELECT draw, turns FROM store.episode WHERE run_id = %(run)s AND origin = 'train' AND status = 'finished'
            AND (%(first)s::int IS NULL OR draw >= %(first)s)),
        inside AS (
          SELECT sum(turns.squares) / nullif(sum(turns.free), 0) AS variance
          FROM (
            SELECT var_samp(turns) * (count(*) - 1) AS squares, count(*) - 1 AS free FROM finished GROUP BY draw) turns)
        SELECT coalesce(avg(turns), 0)::float8, coalesce(stddev(turns), 0)::float8,
          coalesce(1 - (SELECT variance FROM inside) / nullif(variance(turns), 0), 0)::float8
        FROM finished
        """,
        {"run": run_id, "first": first},
    ).fetchone()
    assert row is not None
    mean, deviation, alike = map(float, row)
    return mean, deviation, min(1.0, max(0.0, alike))


def _played(conn: Connection, run_id: int, since: float) -> list[CohortRollout]:
    rows = conn.execute(
        """
        WITH asked AS (
          SELECT no, (body->>'cohort')::int AS cohort, created_at FROM store.command
          WHERE run_id = %(run)s AND kind = 'play_groups' AND body->>'origin' = 'train'),
        done AS (
          SELECT a.cohort, max(coalesce(c.at, e.at)) AS at
          FROM store.event e JOIN asked a ON a.no = (e.body->>'command_no')::bigint
            LEFT JOIN (SELECT seq, min(created_at) AS at FROM store.command WHERE run_id = %(run)s GROUP BY seq) c
              ON c.seq = e.seq
          WHERE e.run_id = %(run)s AND e.kind = 'group_settled' GROUP BY a.cohort),
        played AS (
          SELECT cohort, min(started_at) AS began, max(finished_at) AS ended, sum(turns)::int AS turns
          FROM store.episode WHERE run_id = %(run)s AND origin = 'train' AND started_at >= to_timestamp(%(since)s)
          GROUP BY cohort)
        SELECT extract(epoch FROM p.began)::float8, extract(epoch FROM p.ended)::float8, p.turns,
          coalesce(extract(epoch FROM (SELECT min(created_at) FROM asked a WHERE a.cohort = p.cohort)), 0.0)::float8,
          coalesce(extract(epoch FROM d.at), 0.0)::float8
        FROM played p LEFT JOIN done d ON d.cohort = p.cohort ORDER BY p.cohort
        """,
        {"run": run_id, "since": since},
    ).fetchall()
    return [CohortRollout(*row) for row in rows]


def _taken_after(conn: Connection, run_id: int, since: float, kind: str) -> list[CommandDelay]:
    rows = conn.execute(
        """
        SELECT extract(epoch FROM created_at)::float8, extract(epoch FROM taken_at - created_at)::float8
        FROM store.command
        WHERE run_id = %s AND kind = %s AND taken_at IS NOT NULL AND takes <= 1 AND created_at >= to_timestamp(%s)
        ORDER BY no DESC LIMIT %s
        """,
        [run_id, kind, since, MOST],
    ).fetchall()
    return [CommandDelay(*row) for row in rows]


def _starts(conn: Connection, run_id: int) -> list[float]:
    rows = conn.execute(
        """
        SELECT extract(epoch FROM e.at - l.granted_at)::float8 FROM store.event e
        JOIN store.lease l ON l.id = (e.body->>'lease_id')::bigint
        WHERE e.run_id = %s AND e.kind = 'child_ready'
        """,
        [run_id],
    ).fetchall()
    return [float(row[0]) for row in rows]


def _worked(conn: Connection, run_id: int, since: float) -> list[Worked]:
    """Read what work on processors took of them; a device of another kind tells nothing of its host's cores."""
    rows = conn.execute(
        """
        SELECT i.t0, i.t1, i.cpu FROM store.interval i JOIN store.device d ON d.id = i.device_id
        WHERE i.run_id = %s AND i.phase IN ('rollout', 'train') AND d.kind = 'cpu' AND i.t0 >= %s
        ORDER BY i.t1 DESC LIMIT %s
        """,
        [run_id, since, 2 * MOST],
    ).fetchall()
    return [Worked(*row) for row in reversed(rows)]


def _cores(conn: Connection, run_id: int) -> int:
    """Return the cores of a run's host, 0 where it had several."""
    rows = conn.execute(
        """
        SELECT DISTINCT n.name, coalesce((n.facts->>'cpus')::int, 0) FROM store.lease l
        JOIN store.device d ON d.id = l.device_id JOIN store.node n ON n.name = d.node WHERE l.run_id = %s
        """,
        [run_id],
    ).fetchall()
    return int(rows[0][1]) if len(rows) == 1 else 0
