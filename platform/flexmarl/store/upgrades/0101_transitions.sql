-- The four events that move a policy's data, each with its time and its owner, read from the rows that record them:
-- ready (the cut, by the driver), backward (by the trainer's incarnation), step (by the same), publish (by an engine's).
CREATE VIEW store.transition AS
SELECT m.run_id, m.policy, 'ready' AS kind, m.cohort, m.no AS micro_batch, NULL::int AS version,
  cardinality(m.advantages) AS rows, 'driver' AS owner, m.cut_at AS at, NULL::bigint AS seq
FROM store.micro_batch m
UNION ALL
SELECT e.run_id, e.body ->> 'policy', 'backward', m.cohort, m.no, split_part(e.body ->> 'accumulator', ':', 1)::int,
  (e.body #>> '{stats,rows}')::int, split_part(e.body ->> 'accumulator', ':', 2), e.at, e.seq
FROM store.event e JOIN store.micro_batch m
  ON m.run_id = e.run_id AND m.policy = e.body ->> 'policy' AND m.no = (e.body ->> 'micro_batch')::int
WHERE e.kind = 'micro_batch_accumulated'
UNION ALL
SELECT e.run_id, e.body ->> 'policy', 'step',
  (SELECT max(m.cohort) FROM store.micro_batch m WHERE m.run_id = e.run_id AND m.policy = e.body ->> 'policy'
     AND m.version = (e.body ->> 'version')::int),
  NULL, (e.body ->> 'version')::int,
  (SELECT coalesce(sum(cardinality(m.advantages)), 0)::int FROM store.micro_batch m WHERE m.run_id = e.run_id
     AND m.policy = e.body ->> 'policy' AND m.version = (e.body ->> 'version')::int),
  split_part(e.body ->> 'accumulator', ':', 2), e.at, e.seq
FROM store.event e WHERE e.kind = 'step_committed'
UNION ALL
SELECT e.run_id, e.body ->> 'policy', 'publish', NULL, NULL, (e.body ->> 'version')::int, NULL,
  e.body ->> 'incarnation', e.at, e.seq
FROM store.event e WHERE e.kind = 'weights_served';
