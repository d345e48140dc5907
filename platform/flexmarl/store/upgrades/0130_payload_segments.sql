-- Payloads by reference: a large payload lies in a segment file that its writer appended to and flushed to the disk
-- before it wrote the row. The row keeps where it lies and its digest; its lengths give the size.

-- A folder of segment files, known by the token it holds, wherever it is mounted or moved to.
CREATE TABLE store.payload_place (
  place text PRIMARY KEY,
  host  text NOT NULL,                        -- machine that told of it last
  path  text NOT NULL,
  at    timestamptz NOT NULL DEFAULT now()
);

-- One file per writer, run and epoch. Its number is the writer's choice, so that it is registered with its first rows.
CREATE TABLE store.segment (
  id         bigint PRIMARY KEY,
  run_id     bigint NOT NULL,
  epoch      int NOT NULL,
  place      text NOT NULL,
  retired_at timestamptz                      -- its rows are gone: whoever reaches the place removes the file
);
CREATE INDEX segment_run ON store.segment (run_id);

ALTER TABLE store.sample
  ALTER COLUMN payload DROP NOT NULL,         -- NULL: by reference
  ADD COLUMN segment    bigint,
  ADD COLUMN seg_offset bigint,
  ADD COLUMN digest     bytea,
  ADD CONSTRAINT sample_payload_somewhere CHECK (num_nonnulls(payload, segment) = 1);

-- Samples of an ended run that left the store; its curves, episodes and log stay.
CREATE TABLE store.retirement (
  run_id   bigint PRIMARY KEY,
  epoch    int NOT NULL,                      -- rows of a later epoch stay
  seq      bigint NOT NULL,                   -- events up to it told of samples that are gone
  samples  bigint NOT NULL,
  began_at timestamptz NOT NULL DEFAULT now(),
  ended_at timestamptz                        -- NULL: interrupted, the next janitor goes on
);
