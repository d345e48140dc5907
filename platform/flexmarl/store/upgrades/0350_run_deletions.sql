-- Deletions of runs that somebody asked for: what is under way, and the answer to who asks again. Everything else of
-- such a run goes. The row stays as the memory by which nodes that were away find what they still have to remove.
CREATE TABLE store.run_deletion (
  run_id     bigint PRIMARY KEY,
  operation  uuid NOT NULL UNIQUE,
  run        uuid NOT NULL UNIQUE,            -- its names towards people
  key        text NOT NULL,
  project    text NOT NULL,
  asked_by   text NOT NULL DEFAULT '',
  reason     text NOT NULL DEFAULT '',
  request_id text NOT NULL DEFAULT '',
  asked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  rows_gone_at timestamptz,                   -- NULL: the janitor is at it, or goes on with it
  nodes      text[] NOT NULL DEFAULT '{}',    -- nodes that have not said that nothing of it lies on their disks
  ended_at   timestamptz
);
CREATE INDEX run_deletion_open ON store.run_deletion (run_id) WHERE ended_at IS NULL;
CREATE INDEX run_deletion_key ON store.run_deletion (key);
