-- Tokens of training trajectories that the run's setting does not keep leave once they are trained: their rows stay,
-- with neither payload nor segment. Null in both says so.
ALTER TABLE store.sample DROP CONSTRAINT sample_payload_somewhere;
ALTER TABLE store.sample ADD CONSTRAINT sample_payload_somewhere CHECK (num_nonnulls(payload, segment) <= 1);

-- How far a run's micro-batches have been looked at for that.
CREATE TABLE store.trimming (
  run_id bigint NOT NULL, policy text NOT NULL, no int NOT NULL, payloads bigint NOT NULL DEFAULT 0,
  bytes  bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (run_id, policy)
);

COMMENT ON COLUMN store.sample.n_allowed IS
  '0: the whole vocabulary; below zero: so many ids that follow each other, of which the payload holds the first';
