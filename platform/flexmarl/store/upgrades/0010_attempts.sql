-- Attempts of a run, the outcome of each verb somebody asked for, and the request behind lines and commands.

-- A continuous stretch of a run. Written by the driver with the decision that begins or ends it.
CREATE TABLE store.attempt (
  run_id      bigint NOT NULL,
  no          int NOT NULL,                     -- from 1, gapless
  epoch       int NOT NULL,
  verb        text NOT NULL,                    -- what began it: start | resume | stop | retry
  began_by    text NOT NULL DEFAULT '',
  began_at    timestamptz NOT NULL,
  first_step  int NOT NULL,                     -- train steps done before it
  ended_at    timestamptz,
  ended_by    text NOT NULL DEFAULT '',
  status      text NOT NULL DEFAULT '',         -- of the run when it ended
  reason      text NOT NULL DEFAULT '',
  reason_text text NOT NULL DEFAULT '',
  last_step   int,                              -- train steps done when it ended
  versions    jsonb NOT NULL DEFAULT '{}',      -- policy -> committed version when it ended
  PRIMARY KEY (run_id, no)
);

-- How a verb ended. One that was handled and has no row is on its way.
CREATE TABLE store.verb_outcome (
  run_id       bigint NOT NULL,
  producer_key text NOT NULL,                   -- key of its event
  succeeded    boolean NOT NULL,
  status       text NOT NULL,                   -- of the run then
  text         text NOT NULL DEFAULT '',
  at           timestamptz NOT NULL,
  PRIMARY KEY (run_id, producer_key)
);

ALTER TABLE store.note ADD COLUMN cause text NOT NULL DEFAULT '';     -- request it follows from
ALTER TABLE store.command ADD COLUMN cause text NOT NULL DEFAULT '';  -- request that led to it, when a verb did

-- Runs of before have one attempt each, and their verbs have ended in one way or another.
INSERT INTO store.attempt (run_id, no, epoch, verb, began_at, first_step, ended_at, status, reason, reason_text, last_step)
SELECT run_id, 1, epoch, 'start', coalesce(started_at, status_since), 0, finished_at,
  CASE WHEN finished_at IS NULL THEN '' ELSE status END, CASE WHEN finished_at IS NULL THEN '' ELSE reason END,
  CASE WHEN finished_at IS NULL THEN '' ELSE reason_text END, CASE WHEN finished_at IS NOT NULL THEN step END
FROM store.run_state WHERE status <> 'draft';

INSERT INTO store.verb_outcome (run_id, producer_key, succeeded, status, at)
SELECT h.run_id, h.producer_key, true, r.status, e.at
FROM store.handled h JOIN store.run_state r USING (run_id) JOIN store.event e ON e.run_id = h.run_id AND e.seq = h.seq
WHERE h.producer_key LIKE 'verb:%';
