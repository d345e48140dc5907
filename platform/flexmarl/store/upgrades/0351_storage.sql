-- What takes the room, as the janitor measured it last, and what it did then. One row per run and kind; nothing is
-- decided by it but which ended runs a limit of size lets go first.
CREATE TABLE store.storage_use (
  run_id bigint NOT NULL,
  kind   text NOT NULL,                       -- samples | episodes | events | log | series | payloads | checkpoints
  rows   bigint NOT NULL,
  bytes  bigint NOT NULL,
  PRIMARY KEY (run_id, kind)
);
CREATE TABLE store.storage_pass (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  began_at timestamptz NOT NULL,
  ended_at timestamptz NOT NULL,
  host    text NOT NULL,                      -- machine whose folders were measured
  places  jsonb NOT NULL,                     -- what is no run's: name -> bytes
  done    jsonb NOT NULL                      -- what was removed: [{run, kind, amount, kept}]
);
