-- A trainer may share the device of an engine of its run. Who shares a device names the lease that holds it; once that
-- one ends, whoever is left holds the device alone, so that it is nobody else's before nothing of the run is on it.
ALTER TABLE store.lease ADD COLUMN beside bigint;
ALTER TABLE store.lease ADD CONSTRAINT lease_place UNIQUE (id, device_id, run_id);
ALTER TABLE store.lease ADD CONSTRAINT lease_beside
  FOREIGN KEY (beside, device_id, run_id) REFERENCES store.lease (id, device_id, run_id);
ALTER TABLE store.lease ADD CONSTRAINT lease_beside_trains CHECK (beside IS NULL OR use = 'trainer');
DROP INDEX store.lease_exclusive;
CREATE UNIQUE INDEX lease_exclusive ON store.lease (device_id) WHERE state <> 'ended' AND beside IS NULL;
CREATE UNIQUE INDEX lease_two ON store.lease (beside) WHERE state <> 'ended';

CREATE FUNCTION store.left_alone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE store.lease SET beside = NULL WHERE beside = NEW.id AND state <> 'ended';
  RETURN NULL;
END $$;
CREATE TRIGGER lease_left_alone AFTER UPDATE OF state ON store.lease
  FOR EACH ROW WHEN (NEW.state = 'ended' AND OLD.state <> 'ended') EXECUTE FUNCTION store.left_alone();

-- Two on one device are one seat.
CREATE OR REPLACE VIEW store.seat AS
SELECT r.project, d.pool, 1 AS devices
  FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.run_state r USING (run_id)
  WHERE l.state <> 'ended' AND l.beside IS NULL AND NOT EXISTS (
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

-- What a turn of a shared device took stands among the swaps.
DROP INDEX store.interval_swaps;
CREATE INDEX interval_swaps ON store.interval (run_id, t1, lease_id, ord)
  WHERE phase IN ('bind', 'suspend', 'resume', 'sleep', 'wake');
