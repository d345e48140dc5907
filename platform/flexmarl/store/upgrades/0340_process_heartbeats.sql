-- Every process of the platform reports here that it lives and that its loops move. Only the newest report counts, so it
-- need not survive a crash of the server.
CREATE UNLOGGED TABLE store.process_heartbeat (
  id text PRIMARY KEY,
  kind text NOT NULL,
  node text NOT NULL,
  place text NOT NULL DEFAULT '',
  pid integer NOT NULL,
  started_at timestamptz NOT NULL,
  heard_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  stalled_loop text NOT NULL DEFAULT '',
  stalled_s real NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
