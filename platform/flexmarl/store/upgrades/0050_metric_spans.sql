-- Summaries of 256 consecutive steps of a series. A chart of a long series and the catalogue read them, not every point.
-- Triggers of store.metric keep them, in the transaction of the points: whoever writes points need not know. Values that
-- are no finite numbers stay in store.metric and are no part of a summary. Points leave only with their whole run.
CREATE TABLE store.metric_span (
  run_id bigint NOT NULL, name text NOT NULL, agent text NOT NULL, stat text NOT NULL,
  span   int NOT NULL,                        -- step >> 8
  points int NOT NULL,
  first_step int NOT NULL, first_value double precision NOT NULL,
  last_step  int NOT NULL, last_value  double precision NOT NULL,
  min_step   int NOT NULL, min_value   double precision NOT NULL,
  max_step   int NOT NULL, max_value   double precision NOT NULL,
  at_low     timestamptz NOT NULL, at_high      timestamptz NOT NULL,
  samples_low bigint NOT NULL,     samples_high bigint NOT NULL,
  PRIMARY KEY (run_id, name, agent, stat, span)
) WITH (fillfactor = 70);

CREATE FUNCTION store.add_metric_spans() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO store.metric_span AS s
  SELECT run_id, name, agent, stat, step >> 8, count(*),
    min(step), (array_agg(value ORDER BY step))[1], max(step), (array_agg(value ORDER BY step DESC))[1],
    (array_agg(step ORDER BY value, step))[1], min(value), (array_agg(step ORDER BY value DESC, step))[1], max(value),
    min(at), max(at), min(samples), max(samples)
  FROM fresh WHERE value - value = 0
  GROUP BY run_id, name, agent, stat, step >> 8
  ORDER BY 1, 2, 3, 4, 5
  ON CONFLICT (run_id, name, agent, stat, span) DO UPDATE SET
    points = s.points + excluded.points,
    first_value = CASE WHEN excluded.first_step < s.first_step THEN excluded.first_value ELSE s.first_value END,
    first_step = least(s.first_step, excluded.first_step),
    last_value = CASE WHEN excluded.last_step > s.last_step THEN excluded.last_value ELSE s.last_value END,
    last_step = greatest(s.last_step, excluded.last_step),
    min_step = CASE WHEN excluded.min_value < s.min_value THEN excluded.min_step ELSE s.min_step END,
    min_value = least(s.min_value, excluded.min_value),
    max_step = CASE WHEN excluded.max_value > s.max_value THEN excluded.max_step ELSE s.max_step END,
    max_value = greatest(s.max_value, excluded.max_value),
    at_low = least(s.at_low, excluded.at_low), at_high = greatest(s.at_high, excluded.at_high),
    samples_low = least(s.samples_low, excluded.samples_low),
    samples_high = greatest(s.samples_high, excluded.samples_high);
  IF current_setting('flexmarl.spans_renewed', true) = 'yes' THEN
    PERFORM set_config('flexmarl.spans_renewed', 'no', true);
    UPDATE store.metric_span s SET points = k.points
    FROM (
      SELECT f.run_id, f.name, f.agent, f.stat, f.span, count(*) AS points
      FROM (SELECT DISTINCT run_id, name, agent, stat, step >> 8 AS span FROM fresh) f
      JOIN store.metric m ON m.run_id = f.run_id AND m.name = f.name AND m.agent = f.agent AND m.stat = f.stat
        AND m.step BETWEEN f.span << 8 AND (f.span << 8) + 255
      WHERE m.value - m.value = 0 GROUP BY 1, 2, 3, 4, 5) k
    WHERE (s.run_id, s.name, s.agent, s.stat, s.span) = (k.run_id, k.name, k.agent, k.stat, k.span);
  END IF;
  RETURN NULL;
END $$;

-- A point that was written again may have been an extreme: its summary is made anew. The deletion takes the lock, so
-- that the statement behind it sees the points of whoever held the summary before.
CREATE FUNCTION store.renew_metric_spans() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM fresh) THEN
    RETURN NULL;
  END IF;
  -- INSERT ... ON CONFLICT DO UPDATE comes here first and then above, with what it added in both: it must not count twice.
  PERFORM set_config('flexmarl.spans_renewed', 'yes', true);
  DELETE FROM store.metric_span s USING (SELECT DISTINCT run_id, name, agent, stat, step >> 8 AS span FROM fresh) k
  WHERE (s.run_id, s.name, s.agent, s.stat, s.span) = (k.run_id, k.name, k.agent, k.stat, k.span);
  INSERT INTO store.metric_span
  SELECT m.run_id, m.name, m.agent, m.stat, k.span, count(*),
    min(step), (array_agg(value ORDER BY step))[1], max(step), (array_agg(value ORDER BY step DESC))[1],
    (array_agg(step ORDER BY value, step))[1], min(value), (array_agg(step ORDER BY value DESC, step))[1], max(value),
    min(at), max(at), min(samples), max(samples)
  FROM (SELECT DISTINCT run_id, name, agent, stat, step >> 8 AS span FROM fresh) k
  JOIN store.metric m ON m.run_id = k.run_id AND m.name = k.name AND m.agent = k.agent AND m.stat = k.stat
    AND m.step BETWEEN k.span << 8 AND (k.span << 8) + 255
  WHERE m.value - m.value = 0
  GROUP BY m.run_id, m.name, m.agent, m.stat, k.span;
  RETURN NULL;
END $$;

CREATE TRIGGER metric_added AFTER INSERT ON store.metric
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION store.add_metric_spans();
CREATE TRIGGER metric_changed AFTER UPDATE ON store.metric
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION store.renew_metric_spans();

INSERT INTO store.metric_span
SELECT run_id, name, agent, stat, step >> 8, count(*),
  min(step), (array_agg(value ORDER BY step))[1], max(step), (array_agg(value ORDER BY step DESC))[1],
  (array_agg(step ORDER BY value, step))[1], min(value), (array_agg(step ORDER BY value DESC, step))[1], max(value),
  min(at), max(at), min(samples), max(samples)
FROM store.metric WHERE value - value = 0
GROUP BY run_id, name, agent, stat, step >> 8;
