"""A run with as many rows as one asks for, made by the database itself: log, orders, episodes, samples, micro-batches.

Its rows keep every promise, so a check of them passes.
"""

from typing import Any

MEMBERS, TURNS, PER_BATCH, PER_STEP = 8, 2, 10, 100
"""Episodes of a group, rows of an episode, groups of a micro-batch and of a step."""
FILL = (
    """
    INSERT INTO store.event (run_id, seq, kind, body, at)
    SELECT %(run)s, d + 1, 'group_settled', jsonb_build_object('kind', 'group_settled', 'draw', d, 'origin', 'train',
      'epoch', 1, 'command_no', 1, 'started_at', 0, 'finished_at', 1,
      'versions', jsonb_build_object('speaker', 0, 'listener', 0), 'episodes', (
        SELECT jsonb_agg(jsonb_build_object('member', m, 'attempt', 1, 'status', 'finished', 'reason', '', 'team_score',
          0.5, 'scores', jsonb_build_object('speaker', 0.5, 'listener', 0.5), 'solved', true, 'duration_s', 1.5,
          'samples', jsonb_build_array(
            jsonb_build_object('role', 'speaker', 'turn', 0, 'tokens', 4, 'reward', 0),
            jsonb_build_object('role', 'listener', 'turn', 0, 'tokens', 4, 'reward', 0))))
        FROM generate_series(0, %(members)s - 1) m)), now()
    FROM generate_series(0, %(draws)s - 1) d
    """,
    """
    INSERT INTO store.command (run_id, no, seq, epoch, kind, route, body, status)
    SELECT %(run)s, c + 1, 1, 1, 'play_groups', 'broker', jsonb_build_object('cohort', c, 'groups', (
      SELECT jsonb_agg(jsonb_build_object('draw', d, 'members', %(members)s))
      FROM generate_series(c * %(per_step)s, least((c + 1) * %(per_step)s, %(draws)s) - 1) d)), 'done'
    FROM generate_series(0, (%(draws)s - 1) / %(per_step)s) c
    """,
    """
    INSERT INTO store.episode (run_id, draw, member, attempt, origin, status, cohort, scores, team_score, solved, turns,
      tokens, pins, task, started_at, finished_at)
    SELECT %(run)s, d, m, 1, 'train', 'finished', d / %(per_step)s, '{}', 0.5, true, 2, 8, '{}', '{"title": "t"}',
      now(), now() FROM generate_series(0, %(draws)s - 1) d, generate_series(0, %(members)s - 1) m
    """,
    """
    INSERT INTO store.sample (run_id, draw, member, attempt, role, turn, policy, version, segments, n_prompt,
      n_response, finish, payload)
    SELECT %(run)s, d, m, 1, role, 0, role, d / %(per_step)s, ARRAY[d / %(per_step)s, 4], 12, 4, 'stop',
      decode(repeat('00', 80), 'hex')
    FROM generate_series(0, %(draws)s - 1) d, generate_series(0, %(members)s - 1) m,
      unnest(ARRAY['speaker', 'listener']) role
    """,
    """
    INSERT INTO store.micro_batch (run_id, policy, no, cohort, status, keys, advantages, weights, version)
    SELECT %(run)s, role, d / %(per_batch)s, min(d) / %(per_step)s, 'applied',
      jsonb_agg(jsonb_build_array(d, m, 1, role, 0, 1)), array_agg(0.5::real), array_agg(1::real),
      min(d) / %(per_step)s + 1
    FROM generate_series(0, %(draws)s - 1) d, generate_series(0, %(members)s - 1) m,
      unnest(ARRAY['speaker', 'listener']) role GROUP BY role, d / %(per_batch)s
    """,
    """
    INSERT INTO store.policy_version (run_id, policy, version, parent, digest)
    SELECT %(run)s, role, v, nullif(v - 1, -1), 'd'
    FROM generate_series(0, (%(draws)s - 1) / %(per_step)s + 1) v, unnest(ARRAY['speaker', 'listener']) role
    """,
    """
    INSERT INTO store.event (run_id, seq, kind, body, at)
    SELECT %(run)s, %(draws)s + row_number() OVER (), 'step_committed', '{"kind": "step_committed"}', now()
    FROM store.policy_version WHERE run_id = %(run)s AND parent IS NOT NULL
    """,
    """
    UPDATE store.run_state SET status = 'completed', step = (%(draws)s - 1) / %(per_step)s + 1,
      started_at = now() - interval '1 hour', finished_at = now(),
      seq = (SELECT max(seq) FROM store.event WHERE run_id = %(run)s),
      progress = progress || jsonb_build_object('episodes_proposed', %(draws)s::int * %(members)s,
        'episodes_finished', %(draws)s::int * %(members)s)
    WHERE run_id = %(run)s
    """,
    """
    INSERT INTO store.note (run_id, seq, ord, level, actor, text, at)
    SELECT %(run)s, n, 0, 'info', 'driver', 'Step ' || n || ' is done.', now()
    FROM generate_series(1, 300) n
    """,
)


def fill(conn: Any, run_no: int, samples: int) -> None:
    """Give a run about so many samples, and all that belongs to them."""
    values = {
        "run": run_no, "draws": max(1, samples // (MEMBERS * TURNS)), "members": MEMBERS, "per_batch": PER_BATCH,
        "per_step": PER_STEP,
    }  # fmt: skip
    for statement in FILL:
        conn.execute(statement, values)
    conn.execute("ANALYZE")
