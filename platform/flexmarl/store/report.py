"""Figures of a run derived from its rows, and the promises checked on them.

Invariant: nothing here is a counter kept beside the rows. Every check compares two independent sources and shows both
numbers, so that a failed line says what is missing.
"""

from dataclasses import dataclass

from psycopg import Connection
from psycopg.pq import TransactionStatus


@dataclass(frozen=True, slots=True)
class Counts:
    events: int
    waiting_events: int
    commands: int
    open_commands: int
    episodes: int
    samples: int
    tokens: int
    micro_batches_cut: int
    micro_batches_accumulated: int
    micro_batches_applied: int
    micro_batches_void: int
    samples_trained: int
    versions: int


@dataclass(frozen=True, slots=True)
class Check:
    """One promise. `expected` and `found` are what two sources say."""

    name: str
    ok: bool
    expected: int
    found: int
    detail: str


def counts(conn: Connection, run_id: int) -> Counts:
    """Count a run's rows."""
    row = conn.execute(
        """
        SELECT
          (SELECT count(*) FROM store.event WHERE run_id = %(run)s),
          (SELECT count(*) FROM store.inbox WHERE run_id = %(run)s),
          (SELECT count(*) FROM store.command WHERE run_id = %(run)s),
          (SELECT count(*) FROM store.command WHERE run_id = %(run)s AND status IN ('open', 'taken')),
          e.episodes, s.samples, s.tokens, m.cut, m.accumulated, m.applied, m.void, m.trained,
          (SELECT count(*) FROM store.policy_version WHERE run_id = %(run)s)
        FROM
          (SELECT count(*) AS episodes FROM store.episode WHERE run_id = %(run)s) e,
          (SELECT count(*) AS samples, coalesce(sum(n_response), 0)::bigint AS tokens
           FROM store.sample WHERE run_id = %(run)s) s,
          (SELECT count(*) FILTER (WHERE status = 'cut') AS cut,
             count(*) FILTER (WHERE status = 'accumulated') AS accumulated,
             count(*) FILTER (WHERE status = 'applied') AS applied, count(*) FILTER (WHERE status = 'void') AS void,
             coalesce(sum(cardinality(advantages)) FILTER (WHERE status = 'applied'), 0)::bigint AS trained
           FROM store.micro_batch WHERE run_id = %(run)s) m
        """,
        {"run": run_id},
    ).fetchone()
    assert row is not None
    return Counts(*row)


def consistency_report(conn: Connection, run_id: int) -> list[Check]:
    """Check the store's promises on a run, in one consistent view of the rows."""
    alone = conn.info.transaction_status == TransactionStatus.IDLE
    with conn.transaction():
        if alone:  # inside a caller's transaction the view is the caller's choice
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        checks = []
        for name, detail, statement in _CHECKS:
            row = conn.execute(statement.encode(), {"run": run_id}).fetchone()
            assert row is not None
            checks.append(Check(name, row[0] == row[1], int(row[0]), int(row[1]), detail))
    return checks


_RETIRED = """coalesce((
    SELECT CASE WHEN c.relispartition THEN t.gone_seq ELSE t.seq END
    FROM store.retirement t LEFT JOIN pg_class c ON c.oid = to_regclass('store.sample_' || t.run_id)
    WHERE t.run_id = %(run)s), 0)"""
"""Samples that events up to this one told of were retired, or stand apart because a retirement is under way."""

_LOGGED = """
  SELECT seq, body FROM store.event WHERE run_id = %(run)s AND kind = 'group_settled'
  UNION ALL SELECT 9223372036854775807, body FROM store.inbox
  WHERE run_id = %(run)s AND body ->> 'kind' = 'group_settled'"""

_APPLIED = """
  SELECT m.policy, m.version, m.no, (k.key ->> 0)::int AS draw, (k.key ->> 1)::int AS member,
    (k.key ->> 2)::int AS attempt, k.key ->> 3 AS role, (k.key ->> 4)::int AS turn
  FROM store.micro_batch m, jsonb_array_elements(m.keys) AS k(key)
  WHERE m.run_id = %(run)s AND m.status = 'applied'"""

_KEPT = f"""
  SELECT a.* FROM ({_APPLIED}) a WHERE a.draw NOT IN (
    SELECT (e.body ->> 'draw')::int FROM store.event e
    WHERE e.run_id = %(run)s AND e.kind = 'group_settled' AND e.seq <= {_RETIRED})"""
"""Applied rows whose samples were not retired. NOT IN hashes the draws once; NOT EXISTS may read all for each row."""

_ORDERED = """
  SELECT (g ->> 'draw')::int AS draw, max((g ->> 'members')::int) AS members
  FROM store.command c, jsonb_array_elements(c.body -> 'groups') AS g
  WHERE c.run_id = %(run)s AND c.kind = 'play_groups' GROUP BY 1"""

_CHECKS: tuple[tuple[str, str, str], ...] = (
    (
        "log_gapless",
        "events in the log = newest sequence number",
        """SELECT (SELECT seq FROM store.run_state WHERE run_id = %(run)s),
           (SELECT count(*) FROM store.event WHERE run_id = %(run)s)""",
    ),
    (
        "episodes_accounted",
        "proposed = finished + failed + cancelled (+ still in flight while the run lives)",
        """SELECT proposed, CASE WHEN live THEN greatest(settled, least(proposed, settled + in_flight)) ELSE settled END
           FROM (SELECT coalesce((progress ->> 'episodes_proposed')::bigint, 0) AS proposed,
             coalesce((progress ->> 'episodes_finished')::bigint, 0)
               + coalesce((progress ->> 'episodes_failed')::bigint, 0)
               + coalesce((progress ->> 'episodes_cancelled')::bigint, 0) AS settled,
             status NOT IN ('completed', 'failed', 'cancelled', 'killed') AS live,
             (SELECT coalesce(sum((g ->> 'members')::int - coalesce(t.told, 0)), 0) FROM store.command c
                CROSS JOIN jsonb_array_elements(c.body -> 'groups') AS g
                LEFT JOIN (
                  SELECT (e.body ->> 'draw')::int AS draw, sum(jsonb_array_length(e.body -> 'episodes')) AS told
                  FROM store.event e WHERE e.run_id = %(run)s AND e.kind = 'group_settled' GROUP BY 1) t
                  ON t.draw = (g ->> 'draw')::int
              WHERE c.run_id = %(run)s AND c.kind = 'play_groups') AS in_flight
             FROM store.run_state WHERE run_id = %(run)s) f""",
    ),
    (
        "episode_rows_match_log",
        "episodes told by events, handled or waiting = episode rows",
        f"""SELECT (SELECT coalesce(sum(jsonb_array_length(body -> 'episodes')), 0) FROM ({_LOGGED}) l),
           (SELECT count(*) FROM store.episode WHERE run_id = %(run)s)""",
    ),
    (
        "sample_rows_match_log",
        "samples told by events, handled or waiting, and not retired = sample rows",
        f"""SELECT (SELECT coalesce(sum(jsonb_array_length(e -> 'samples')), 0)
              FROM ({_LOGGED}) l, jsonb_array_elements(l.body -> 'episodes') AS e WHERE l.seq > {_RETIRED}),
           (SELECT count(*) FROM store.sample WHERE run_id = %(run)s)""",
    ),
    (
        "groups_complete",
        "settled draws with a row for every member that was ordered; where episodes settle, with no more than those",
        f"""SELECT count(*), count(*) FILTER (WHERE have = members OR (have < members AND EXISTS (
               SELECT 1 FROM store.run_state WHERE run_id = %(run)s AND spec #>> '{{batch,settle}}' = 'episode')))
           FROM (SELECT o.draw, o.members, count(e.member) AS have FROM ({_ORDERED}) o
             JOIN store.episode e ON e.run_id = %(run)s AND e.draw = o.draw GROUP BY o.draw, o.members) g""",
    ),
    (
        "none_trained_twice",
        "rows applied = distinct samples applied, per policy",
        f"""SELECT count(*), count(DISTINCT (policy, draw, member, attempt, role, turn)) FROM ({_APPLIED}) a""",
    ),
    (
        "trained_samples_exist",
        "rows applied = sample rows behind them, of the same policy",
        f"""SELECT count(*), count(s.draw) FROM ({_KEPT}) a LEFT JOIN store.sample s
             ON s.run_id = %(run)s AND s.draw = a.draw AND s.member = a.member AND s.attempt = a.attempt
             AND s.role = a.role AND s.turn = a.turn AND s.policy = a.policy""",
    ),
    (
        "payloads_registered",
        "samples by reference = those whose segment is known and not retired",
        """SELECT count(*), count(g.id) FROM store.sample s
           LEFT JOIN store.segment g ON g.id = s.segment AND g.run_id = s.run_id AND g.retired_at IS NULL
           WHERE s.run_id = %(run)s AND s.segment IS NOT NULL""",
    ),
    (
        "own_lag_within_bound",
        "rows applied = rows whose own lag is within the bound, or whose policy trains what is older",
        f"""SELECT count(*), count(*) FILTER (WHERE a.version - 1 - s.version <= (
             SELECT coalesce((spec #>> ARRAY['policies', a.policy, 'lag_policy', 'bound'])::int,
               (spec #>> '{{mechanisms,lag_policy,bound}}')::int, 0)
             FROM store.run_state WHERE run_id = %(run)s) OR (
             SELECT coalesce(spec #>> ARRAY['policies', a.policy, 'lag_policy', 'at_cut'],
               spec #>> '{{mechanisms,lag_policy,at_cut}}') = 'train' FROM store.run_state WHERE run_id = %(run)s))
           FROM ({_KEPT}) a JOIN store.sample s ON s.run_id = %(run)s AND s.draw = a.draw AND s.member = a.member
             AND s.attempt = a.attempt AND s.role = a.role AND s.turn = a.turn""",
    ),
    (
        "steps_match_log",
        "steps in the log or waiting = versions with a parent",
        """SELECT (SELECT count(*) FROM store.event WHERE run_id = %(run)s AND kind = 'step_committed')
             + (SELECT count(*) FROM store.inbox WHERE run_id = %(run)s AND body ->> 'kind' = 'step_committed'),
           (SELECT count(*) FROM store.policy_version WHERE run_id = %(run)s AND parent IS NOT NULL)""",
    ),
    (
        "versions_chain",
        "versions = versions whose parent is the one before",
        """SELECT count(*), count(*) FILTER (WHERE v.version = 0 AND v.parent IS NULL OR EXISTS (
             SELECT 1 FROM store.policy_version p WHERE p.run_id = v.run_id AND p.policy = v.policy
             AND p.version = v.parent AND v.version = v.parent + 1))
           FROM store.policy_version v WHERE v.run_id = %(run)s""",
    ),
    (
        "applied_belong_to_steps",
        "applied micro-batches = those whose version is committed",
        """SELECT count(*), count(v.version) FROM store.micro_batch m LEFT JOIN store.policy_version v
             ON v.run_id = m.run_id AND v.policy = m.policy AND v.version = m.version
           WHERE m.run_id = %(run)s AND m.status = 'applied'""",
    ),
    (
        "ended_run_is_closed",
        "0 = micro-batches cut or accumulated, leases held, or attempts open, in an ended run",
        """SELECT 0, CASE WHEN status IN ('completed', 'failed', 'cancelled', 'killed') THEN
             (SELECT count(*) FROM store.micro_batch WHERE run_id = %(run)s AND status IN ('cut', 'accumulated'))
             + (SELECT count(*) FROM store.lease WHERE run_id = %(run)s AND state = 'held')
             + (SELECT count(*) FROM store.attempt WHERE run_id = %(run)s AND ended_at IS NULL) ELSE 0 END
           FROM store.run_state WHERE run_id = %(run)s""",
    ),
)
