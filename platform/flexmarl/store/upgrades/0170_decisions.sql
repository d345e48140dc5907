-- Why each command was decided, and the decisions that are no commands.
ALTER TABLE store.command ADD COLUMN reason text NOT NULL DEFAULT '';  -- for people; empty in runs of before

-- What the orchestrator ruled on groups, rows, steps and cohorts. Written by the driver with the event it ruled on.
CREATE TABLE store.ruling (
  run_id bigint NOT NULL,
  seq    bigint NOT NULL,                      -- event it was made on
  ord    int NOT NULL,                         -- among the rulings of its event
  kind   text NOT NULL,                        -- see contracts.rulings
  cause  text NOT NULL DEFAULT '',             -- for programs: what rows were dropped for
  policy text NOT NULL DEFAULT '',
  cohort int NOT NULL DEFAULT -1,
  target text NOT NULL DEFAULT '',             -- draw:7, micro_batch:solver:3
  rows   int NOT NULL DEFAULT 0,               -- rows it takes out of training
  reason text NOT NULL DEFAULT '',
  at     timestamptz NOT NULL,
  PRIMARY KEY (run_id, seq, ord)
);
CREATE INDEX ruling_cohort ON store.ruling (run_id, cohort);

-- Cohorts are looked at by number.
CREATE INDEX command_cohort ON store.command (run_id, ((body ->> 'cohort')::int)) WHERE kind = 'play_groups';
