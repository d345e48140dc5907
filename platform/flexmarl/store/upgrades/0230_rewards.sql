-- Rewards that are computed apart from play. A row lives from the end of an episode until whoever played it has read
-- what it earned; the episode's own row is written then. Nothing of a run's history is kept here.
CREATE TABLE store.reward_task (
  run_id        bigint NOT NULL,
  no            bigint GENERATED ALWAYS AS IDENTITY,
  command_no    bigint NOT NULL,              -- the play it belongs to, and which taker of it
  command_takes int NOT NULL,
  draw          int NOT NULL,
  member        int NOT NULL,
  attempt       int NOT NULL,
  status        text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'taken', 'done', 'failed')),
  takes         int NOT NULL DEFAULT 0,       -- tries begun
  token         uuid,
  deadline      timestamptz,
  holder        text NOT NULL DEFAULT '',
  next_send     timestamptz NOT NULL DEFAULT clock_timestamp(),
  body          text NOT NULL,
  result        text NOT NULL DEFAULT '',
  reason        text NOT NULL DEFAULT '',     -- of the last try that failed
  PRIMARY KEY (run_id, no),
  UNIQUE (run_id, draw, member, attempt)
);
CREATE INDEX reward_task_command ON store.reward_task (run_id, command_no);
