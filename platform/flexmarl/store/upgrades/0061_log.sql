-- Log lines of a run's processes, for people. Written by background threads that may lose lines, never by what trains.
-- Writers of one run take turns (logs.put), so `seq` grows in the order in which lines become visible: it is a cursor.
CREATE TABLE store.log (
  run_id    bigint NOT NULL,
  seq       bigint GENERATED ALWAYS AS IDENTITY,
  at        timestamptz NOT NULL,             -- clock of the process
  level     text NOT NULL,                    -- debug | info | warning | error
  component text NOT NULL,                    -- driver | node | device | rollout | engine | trainer
  agent     text NOT NULL DEFAULT '',         -- policy, where the line speaks of one
  node      text NOT NULL DEFAULT '',
  text      text NOT NULL,
  fields    jsonb NOT NULL DEFAULT '{}',
  PRIMARY KEY (run_id, seq)
);
