-- Quotas count gangs whole, and projects have a weight beside others of the same priority.

-- Which lease a lease stands in for while its run moves; 0 for none.
ALTER TABLE store.lease ADD COLUMN replaces bigint NOT NULL DEFAULT 0;

-- Projects that have another weight than 1. The control plane alone writes it, with the project.
CREATE TABLE store.project_weight (project text PRIMARY KEY, weight double precision NOT NULL CHECK (weight > 0));

-- What each project has of each pool: a lease that is not ended is a seat, two of one move are one, and what a run
-- lacks of a gang that it holds a part of is its seat still.
CREATE VIEW store.seat AS
SELECT r.project, d.pool, 1 AS devices
  FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.run_state r USING (run_id)
  WHERE l.state <> 'ended' AND NOT EXISTS (
    SELECT 1 FROM store.lease old
    WHERE old.id = l.replaces AND old.run_id = l.run_id AND old.state <> 'ended')
UNION ALL
SELECT r.project, wanted.pool, wanted.devices
  FROM store.command c JOIN store.run_state r USING (run_id)
    CROSS JOIN LATERAL (VALUES
      (c.body ->> 'pool', (c.body ->> 'engines')::int),
      (coalesce(nullif(c.body ->> 'trainer_pool', ''), c.body ->> 'pool'), (c.body ->> 'trainers')::int)
    ) AS wanted(pool, devices)
  WHERE c.kind = 'request_devices' AND c.status = 'open' AND coalesce((c.body ->> 'replaces')::bigint, 0) = 0
    AND wanted.devices > 0
    AND r.status NOT IN ('completed', 'failed', 'cancelled', 'killed')
    AND EXISTS (SELECT 1 FROM store.lease l WHERE l.run_id = c.run_id AND l.state = 'held');
