-- What engines and rollout workers told last, and in the last half hour: for people; nothing is decided by it.
-- Rings: a slot is written over when its number comes again, so a run leaves no more the longer it lasts.
CREATE TABLE store.engine_load (
  run_id      bigint NOT NULL,
  slot        int NOT NULL,
  lease_id    bigint NOT NULL,
  incarnation text NOT NULL,
  at          timestamptz NOT NULL,
  running     int NOT NULL,
  waiting     int NOT NULL,
  slots       int NOT NULL,                   -- requests that it generates at once
  generated   bigint NOT NULL,                -- tokens of its life, as the two below
  prompts     bigint NOT NULL,
  cached      bigint,                         -- null: it has no prefix cache
  cache_use   real,                           -- null: it does not know
  PRIMARY KEY (run_id, slot, lease_id)
) WITH (fillfactor = 70);

CREATE TABLE store.asked_load (
  run_id    bigint NOT NULL,
  slot      int NOT NULL,
  worker    text NOT NULL,                    -- one life of a rollout worker
  policy    text NOT NULL,
  at        timestamptz NOT NULL,
  waiting   int NOT NULL,
  in_flight int NOT NULL,
  PRIMARY KEY (run_id, slot, worker, policy)
) WITH (fillfactor = 70);

-- Turns that have waited longest for their reply, as each rollout worker told last.
CREATE TABLE store.open_turns (
  run_id bigint NOT NULL, worker text NOT NULL, at timestamptz NOT NULL, open int NOT NULL, longest jsonb NOT NULL,
  PRIMARY KEY (run_id, worker)
) WITH (fillfactor = 50);

-- Replies that did not stay with the engine that took them, over the life of a rollout worker.
CREATE TABLE store.moved_turns (
  run_id bigint NOT NULL, worker text NOT NULL, cause text NOT NULL, engine text NOT NULL,
  turns bigint NOT NULL, at timestamptz NOT NULL,
  PRIMARY KEY (run_id, worker, cause, engine)
) WITH (fillfactor = 70);
