-- What a swap of a policy moved stands beside how long it took.
ALTER TABLE store.interval ADD COLUMN bytes bigint NOT NULL DEFAULT 0;
CREATE INDEX interval_swaps ON store.interval (run_id, t1, lease_id, ord) WHERE phase IN ('bind', 'suspend', 'resume');
