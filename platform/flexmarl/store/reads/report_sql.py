"""Statements of the consistency report: each reads one range of a key of one run, and names the run."""

STATE = """
  SELECT seq, coalesce((progress ->> 'episodes_proposed')::bigint, 0),
    coalesce((progress ->> 'episodes_finished')::bigint, 0) + coalesce((progress ->> 'episodes_failed')::bigint, 0)
      + coalesce((progress ->> 'episodes_cancelled')::bigint, 0),
    status NOT IN ('completed', 'failed', 'cancelled', 'killed'),
    coalesce(spec #>> '{batch,settle}' = 'episode', false)
  FROM store.run_state WHERE run_id = %(run)s"""

RETIRED = """
  SELECT coalesce((
    SELECT CASE WHEN c.relispartition IS NOT FALSE THEN t.gone_seq ELSE t.seq END
    FROM store.retirement t LEFT JOIN pg_class c ON c.oid = to_regclass('store.sample_' || t.run_id)
    WHERE t.run_id = %(run)s), 0)"""
"""Samples that events up to this one told of were retired, or stand apart because a retirement is under way."""

TOLD = """
  CROSS JOIN LATERAL (
    SELECT CASE WHEN l.kind = 'group_settled' THEN l.body -> 'episodes' END AS episodes OFFSET 0) b
  CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_array_length(b.episodes), 0) AS told, (
      SELECT coalesce(sum(jsonb_array_length(e -> 'samples')
          - jsonb_array_length(jsonb_path_query_array(e -> 'samples', '$[*].follows ? (@ > 0)'))), 0)
      FROM jsonb_array_elements(b.episodes) AS e
    ) AS samples OFFSET 0) s"""
"""Of each event: episodes and samples it tells of, a chain of turns being one. The body is unpacked once."""

EVENTS = f"""
  SELECT count(*), count(*) FILTER (WHERE l.kind = 'step_committed'), coalesce(sum(s.told), 0)::bigint,
    coalesce(sum(s.samples) FILTER (WHERE l.seq > %(retired)s), 0)::bigint,
    string_agg(int4send((l.body ->> 'draw')::int), ''::bytea) FILTER (WHERE l.kind = 'group_settled'),
    string_agg(int4send(s.told), ''::bytea) FILTER (WHERE l.kind = 'group_settled'),
    string_agg(int4send((l.body ->> 'draw')::int), ''::bytea)
      FILTER (WHERE l.kind = 'group_settled' AND l.seq <= %(retired)s),
    coalesce(sum((l.body ->> 'rows')::int) FILTER (WHERE l.kind = 'rows_imported' AND l.seq > %(retired)s), 0)::bigint
  FROM store.event l {TOLD}
  WHERE l.run_id = %(run)s AND l.seq > %(low)s AND l.seq <= %(high)s"""

WAITING = f"""
  SELECT 0, count(*) FILTER (WHERE l.kind = 'step_committed'), coalesce(sum(s.told), 0)::bigint,
    coalesce(sum(s.samples), 0)::bigint,
    coalesce(sum((l.body ->> 'rows')::int) FILTER (WHERE l.kind = 'rows_imported'), 0)::bigint
  FROM (SELECT body ->> 'kind' AS kind, body FROM store.inbox WHERE run_id = %(run)s) l {TOLD}"""

COMMANDS = """
  SELECT count(*), count(*) FILTER (WHERE status IN ('open', 'taken')) FROM store.command
  WHERE run_id = %(run)s AND no >= %(low)s AND no < %(high)s"""

ORDERED = """
  SELECT string_agg(int4send((g ->> 'draw')::int), ''::bytea), string_agg(int4send((g ->> 'members')::int), ''::bytea)
  FROM store.command c, jsonb_array_elements(c.body -> 'groups') AS g
  WHERE c.run_id = %(run)s AND c.no >= %(low)s AND c.no < %(high)s AND c.kind = 'play_groups'"""

NEXT_EPISODE, NEXT_SAMPLE = (
    f"SELECT draw FROM store.{table} WHERE run_id = %(run)s AND draw > %(behind)s ORDER BY draw OFFSET %(rows)s LIMIT 1"
    for table in ("episode", "sample")
)

EPISODES = """
  SELECT string_agg(int4send(draw), ''::bytea), string_agg(int4send(have::int), ''::bytea)
  FROM (SELECT draw, count(*) AS have FROM store.episode
    WHERE run_id = %(run)s AND draw > %(behind)s AND draw <= %(upto)s GROUP BY draw) d"""

SAMPLES = """
  SELECT count(*) FILTER (WHERE s.draw >= 0), coalesce(sum(s.n_response) FILTER (WHERE s.draw >= 0), 0)::bigint,
    count(s.segment), count(g.id), count(*) FILTER (WHERE s.draw < 0)
  FROM store.sample s
  LEFT JOIN store.segment g ON g.id = s.segment AND g.run_id = s.run_id AND g.retired_at IS NULL
  WHERE s.run_id = %(run)s AND s.draw > %(behind)s AND s.draw <= %(upto)s"""

POLICIES = """
  SELECT m.policy, m.last, coalesce((spec #>> ARRAY['policies', m.policy, 'lag_policy', 'bound'])::int,
      (spec #>> '{mechanisms,lag_policy,bound}')::int, 0),
    coalesce(coalesce(spec #>> ARRAY['policies', m.policy, 'lag_policy', 'at_cut'],
      spec #>> '{mechanisms,lag_policy,at_cut}') = 'train', false),
    CASE WHEN spec #>> '{sampling,replay,type}' IN ('archive', 'rescue')
      THEN (spec #>> '{sampling,replay,max_age}')::int ELSE 0 END
  FROM (SELECT policy, max(no) AS last FROM store.micro_batch WHERE run_id = %(run)s GROUP BY policy) m
  JOIN store.run_state r ON r.run_id = %(run)s ORDER BY 1"""

IN_RANGE = "m.run_id = %(run)s AND m.policy = %(policy)s AND m.no >= %(low)s AND m.no < %(high)s"

BATCHES = f"""
  SELECT count(*) FILTER (WHERE m.status = 'cut'), count(*) FILTER (WHERE m.status = 'accumulated'),
    count(*) FILTER (WHERE m.status = 'applied'), count(*) FILTER (WHERE m.status = 'void'),
    coalesce(sum(cardinality(m.weights)) FILTER (WHERE m.status = 'applied' AND NOT m.replayed), 0)::bigint,
    count(v.version) FILTER (WHERE m.status = 'applied')
  FROM store.micro_batch m
  LEFT JOIN store.policy_version v ON v.run_id = m.run_id AND v.policy = m.policy AND v.version = m.version
  WHERE {IN_RANGE}"""

APPLIED = f"""
  SELECT string_agg(int4send(a.draw), ''::bytea),
    string_agg(int4send(CASE WHEN s.policy IS NULL THEN 0 ELSE 1
      + CASE WHEN s.policy = %(policy)s THEN 2 ELSE 0 END
      + CASE WHEN %(older)s OR a.version - 1 - s.version <= %(bound)s THEN 4 ELSE 0 END END), ''::bytea),
    string_agg(int8send(hashtextextended(a.key::text, 0)), ''::bytea)
  FROM (
    SELECT m.version, k.key, (k.key ->> 0)::int AS draw FROM store.micro_batch m, jsonb_array_elements(m.keys) AS k(key)
    WHERE {IN_RANGE} AND m.status = 'applied' AND NOT m.replayed) a
  LEFT JOIN LATERAL (
    SELECT policy, version FROM store.sample
    WHERE run_id = %(run)s AND draw = a.draw AND member = (a.key ->> 1)::int AND attempt = (a.key ->> 2)::int
      AND role = a.key ->> 3 AND turn = (a.key ->> 4)::int LIMIT 1) s ON true"""
"""LATERAL with LIMIT looks each key up: a join might read the whole table again for every range."""

REPLAYED = f"""
  SELECT string_agg(int4send(a.draw), ''::bytea),
    string_agg(int4send(CASE WHEN s.version IS NULL THEN 0 ELSE 1
      + CASE WHEN a.version - 1 - CASE WHEN a.draw < 0 THEN 0 ELSE s.version END <= %(max_age)s THEN 2
        ELSE 0 END END), ''::bytea),
    string_agg(int8send(hashtextextended(a.key::text, 0)), ''::bytea),
    string_agg(int8send(hashtextextended(a.version || a.key::text, 0)), ''::bytea)
  FROM (
    SELECT m.version, k.key, (k.key ->> 0)::int AS draw FROM store.micro_batch m, jsonb_array_elements(m.keys) AS k(key)
    WHERE {IN_RANGE} AND m.status = 'applied' AND m.replayed) a
  LEFT JOIN LATERAL (
    SELECT version FROM store.sample
    WHERE run_id = %(run)s AND draw = a.draw AND member = (a.key ->> 1)::int AND attempt = (a.key ->> 2)::int
      AND role = a.key ->> 3 AND turn = (a.key ->> 4)::int LIMIT 1) s ON true"""
"""The same of rows that a step was taken on again; the last column is that of the row in its step. A row of another run
has a draw below 0, and counts as old as version 0."""

DISTINCT = """
  SELECT count(DISTINCT k.key) FROM store.micro_batch m, jsonb_array_elements(m.keys) AS k(key)
  WHERE m.run_id = %(run)s AND m.policy = %(policy)s AND m.status = 'applied'
    AND NOT m.replayed"""

REST = """
  SELECT count(*), count(v.parent), count(*) FILTER (WHERE v.version = 0 AND v.parent IS NULL OR EXISTS (
      SELECT 1 FROM store.policy_version p WHERE p.run_id = v.run_id AND p.policy = v.policy
      AND p.version = v.parent AND v.version = v.parent + 1)),
    (SELECT count(*) FROM store.inbox WHERE run_id = %(run)s),
    (SELECT count(*) FROM store.lease WHERE run_id = %(run)s AND state = 'held'),
    (SELECT count(*) FROM store.attempt WHERE run_id = %(run)s AND ended_at IS NULL)
  FROM store.policy_version v WHERE v.run_id = %(run)s"""
