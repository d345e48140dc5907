-- What administrators decide about pools, nodes and devices. The arbiter of every driver reads it.

-- A pool without bindings is open to all projects.
CREATE TABLE store.pool_binding (pool text NOT NULL, project text NOT NULL, PRIMARY KEY (pool, project));

-- Devices of a pool that a project may hold at once.
CREATE TABLE store.pool_quota (
  project    text NOT NULL,
  pool       text NOT NULL,
  devices    int  NOT NULL CHECK (devices >= 0),
  version    int  NOT NULL DEFAULT 1,
  changed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (project, pool)
);

-- node.state, device.state: ready | cordoned | draining (device also: lost). `drained` is `draining` with no lease left.
ALTER TABLE store.node
  ADD COLUMN note           text NOT NULL DEFAULT '',
  ADD COLUMN drain_mode     text NOT NULL DEFAULT '',   -- wait | move | stop, while draining
  ADD COLUMN drain_deadline timestamptz,                -- of mode stop
  ADD COLUMN drain_by       text NOT NULL DEFAULT '',
  ADD COLUMN drain_since    timestamptz,
  ADD COLUMN ruled          int  NOT NULL DEFAULT 1,    -- raised by every administrator's change
  ADD COLUMN load           jsonb NOT NULL DEFAULT '{}'; -- what its agent measured last

ALTER TABLE store.device
  ADD COLUMN note           text NOT NULL DEFAULT '',
  ADD COLUMN drain_mode     text NOT NULL DEFAULT '',
  ADD COLUMN drain_deadline timestamptz,
  ADD COLUMN drain_by       text NOT NULL DEFAULT '',
  ADD COLUMN drain_since    timestamptz,
  ADD COLUMN ruled          int  NOT NULL DEFAULT 1,
  ADD COLUMN load           jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN state_before   text NOT NULL DEFAULT '';   -- of a lost device: what it is again when it comes back

-- Busy shares of pools by hour are read by time, over all runs.
CREATE INDEX interval_time ON store.interval (t1);
