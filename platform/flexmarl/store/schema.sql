-- Schema of the experience store and of the registry. Version: see schema.py. Applied by a Django migration.
-- Rules (docs/architecture.md): samples are immutable; progress lives in micro_batch; many writers meet only in the
-- unordered inbox; only the driver that holds a run's lease writes event, command, micro_batch and run_state.
CREATE SCHEMA IF NOT EXISTS store;

CREATE TABLE store.meta (key text PRIMARY KEY, value text NOT NULL);

-- One row per run: its live state. Written by the driver under (owner, fence); created by the control plane.
CREATE TABLE store.run_state (
  run_id        bigint PRIMARY KEY,
  spec          jsonb NOT NULL,               -- resolved ExperimentSpec
  status        text NOT NULL,
  reason        text NOT NULL DEFAULT '',
  reason_text   text NOT NULL DEFAULT '',
  status_since  timestamptz NOT NULL DEFAULT now(),
  pending_verb  text NOT NULL DEFAULT '',     -- a verb the inbox holds and the driver has not handled
  epoch         int NOT NULL DEFAULT 1,       -- raised by stop, kill and a new attempt; fences rollout work
  seq           bigint NOT NULL DEFAULT 0,    -- last event of the log
  step          int NOT NULL DEFAULT 0,       -- cohorts whose every policy has stepped
  progress      jsonb NOT NULL DEFAULT '{}',  -- figures for pages: see contracts.live.Progress
  started_at    timestamptz,
  finished_at   timestamptz,
  owner         text NOT NULL DEFAULT '',     -- driver that holds the run lease
  fence         bigint NOT NULL DEFAULT 0,    -- raised at each takeover
  lease_until   timestamptz NOT NULL DEFAULT '-infinity',
  deadline      timestamptz,                  -- next TimerFired, asked for by the core
  snapshot      bytea,                        -- zstd of the core's state at snapshot_seq
  snapshot_seq  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
ALTER TABLE store.run_state ALTER COLUMN snapshot SET STORAGE EXTERNAL;

-- Facts on their way to the driver. No order is promised; producer_key makes a repetition harmless.
CREATE TABLE store.inbox (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id       bigint NOT NULL,
  producer_key text NOT NULL,
  body         jsonb NOT NULL,
  put_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  UNIQUE (run_id, producer_key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Producer keys already moved to the log, so that a late repetition is refused after the inbox row is gone.
CREATE TABLE store.handled (
  run_id bigint NOT NULL, producer_key text NOT NULL, seq bigint NOT NULL, PRIMARY KEY (run_id, producer_key)
);

-- The log: gapless per run, one writer.
CREATE TABLE store.event (
  run_id bigint NOT NULL,
  seq    bigint NOT NULL,
  kind   text NOT NULL,
  body   jsonb NOT NULL,
  at     timestamptz NOT NULL,                -- the `now` the core was given
  PRIMARY KEY (run_id, seq)
);

-- Lines for people: decisions, state changes, failures. Written by the driver with the event that caused them.
CREATE TABLE store.note (
  run_id bigint NOT NULL, seq bigint NOT NULL, ord int NOT NULL,
  level  text NOT NULL, actor text NOT NULL DEFAULT '', target text NOT NULL DEFAULT '', text text NOT NULL,
  at     timestamptz NOT NULL,
  PRIMARY KEY (run_id, seq, ord)
);

-- Outbox, truth and fence of decisions.
CREATE TABLE store.command (
  run_id     bigint NOT NULL,
  no         bigint NOT NULL,                 -- assigned by the core, gapless per run
  seq        bigint NOT NULL,                 -- event that caused it
  epoch      int NOT NULL,
  kind       text NOT NULL,
  route      text NOT NULL,                   -- broker | node | driver
  lease_id   bigint,                          -- child it is for, when route = node
  queue      text NOT NULL DEFAULT '',        -- Dramatiq queue, when route = broker
  body       jsonb NOT NULL,
  status     text NOT NULL DEFAULT 'open',    -- open | taken | done | failed | void
  token      uuid,                            -- whoever took it; every later write is guarded by it
  takes      int NOT NULL DEFAULT 0,          -- how often it was taken: numbers the attempts of what it plays
  taken_at   timestamptz,
  deadline   timestamptz,                     -- a taken command past it may be taken again
  sends      int NOT NULL DEFAULT 0,
  next_send  timestamptz NOT NULL DEFAULT now(),
  done_at    timestamptz,
  error      jsonb,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, no)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX command_due ON store.command (run_id, next_send) WHERE status IN ('open', 'taken');
CREATE INDEX command_lease ON store.command (lease_id) WHERE status IN ('open', 'taken');

-- One row per episode attempt that settled: the settle record. Grouping sees samples only through it.
CREATE TABLE store.episode (
  run_id      bigint NOT NULL,
  draw        int NOT NULL,
  member      int NOT NULL,
  attempt     int NOT NULL,
  origin      text NOT NULL,
  status      text NOT NULL,
  reason      text NOT NULL DEFAULT '',
  cohort      int NOT NULL DEFAULT -1,        -- train step it was played for; evaluation: step after which it was played
  scores      jsonb NOT NULL,
  team_score  real NOT NULL,
  solved      boolean NOT NULL,
  turns       int NOT NULL,
  tokens      int NOT NULL,
  pins        jsonb NOT NULL,                 -- policy -> version it was played with
  task        jsonb NOT NULL,                 -- the task for people: {"title": ..., "facts": {...}}
  transcript  jsonb NOT NULL DEFAULT '[]',    -- order of the turns and the environment's remarks
  started_at  timestamptz NOT NULL,
  finished_at timestamptz NOT NULL,
  PRIMARY KEY (run_id, draw, member, attempt)
) PARTITION BY LIST (run_id);
CREATE INDEX episode_cohort ON store.episode (run_id, cohort);

-- Immutable training rows. payload = little-endian int32 prompt ids | int32 response ids | float32 log-probs | int32 allowed ids.
CREATE TABLE store.sample (
  run_id       bigint NOT NULL,
  draw         int NOT NULL,
  member       int NOT NULL,
  attempt      smallint NOT NULL,
  role         text NOT NULL,
  turn         smallint NOT NULL,
  policy       text NOT NULL,
  version      int NOT NULL,                  -- oldest version of any response token
  segments     int[] NOT NULL,                -- version, tokens, version, tokens, ... over the response
  n_prompt     int NOT NULL,
  n_response   int NOT NULL,
  n_allowed    int NOT NULL DEFAULT 0,        -- 0: the whole vocabulary was allowed
  finish       text NOT NULL,                 -- stop | length | abort
  reward       real NOT NULL DEFAULT 0,
  temperature  real NOT NULL DEFAULT 1,
  engine       text NOT NULL DEFAULT '',      -- incarnation that answered
  latency_ms   real NOT NULL DEFAULT 0,
  payload      bytea NOT NULL,
  PRIMARY KEY (run_id, draw, member, attempt, role, turn)
) PARTITION BY LIST (run_id);
ALTER TABLE store.sample ALTER COLUMN payload SET STORAGE EXTERNAL;

-- Progress of samples. Written by the driver at the cut; `accumulated` and `applied` by the transactions of the events.
CREATE TABLE store.micro_batch (
  run_id      bigint NOT NULL,
  policy      text NOT NULL,
  no          int NOT NULL,
  cohort      int NOT NULL,
  status      text NOT NULL DEFAULT 'cut',    -- cut | accumulated | applied | void
  reason      text NOT NULL DEFAULT '',
  keys        jsonb NOT NULL,                 -- [[draw, member, attempt, role, turn], ...]
  advantages  real[] NOT NULL,
  weights     real[] NOT NULL,
  accumulator text NOT NULL DEFAULT '',
  stats       jsonb,
  version     int,                            -- version its step committed
  cut_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_at     timestamptz,
  PRIMARY KEY (run_id, policy, no)
) WITH (fillfactor = 60);

CREATE TABLE store.policy_version (
  run_id     bigint NOT NULL,
  policy     text NOT NULL,
  version    int NOT NULL,
  parent     int,
  digest     text NOT NULL,                   -- content digest of the published weights
  state      text NOT NULL DEFAULT '',        -- digest of the training state (optimizer), when durable
  facts      jsonb NOT NULL DEFAULT '{}',
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, policy, version)
);

-- How a policy's ids become text: tokenizer.json of its model source, byte for byte.
CREATE TABLE store.tokenizer (run_id bigint NOT NULL, policy text NOT NULL, body text NOT NULL, PRIMARY KEY (run_id, policy));

CREATE TABLE store.checkpoint (
  run_id bigint NOT NULL, label text NOT NULL, step int NOT NULL, versions jsonb NOT NULL, path text NOT NULL,
  bytes  bigint NOT NULL, facts jsonb NOT NULL DEFAULT '{}', at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, label, step)
);

-- Series: one point per (name, agent, stat, step). agent '' is the team.
CREATE TABLE store.metric (
  run_id bigint NOT NULL, name text NOT NULL, agent text NOT NULL DEFAULT '', stat text NOT NULL DEFAULT 'mean',
  step   int NOT NULL, value double precision NOT NULL, at timestamptz NOT NULL,
  samples bigint NOT NULL DEFAULT 0,          -- samples trained so far, an x axis
  PRIMARY KEY (run_id, name, agent, stat, step)
);

-- Closed busy intervals of devices. Host clock of the node, seconds since the epoch.
CREATE TABLE store.interval (
  lease_id bigint NOT NULL, incarnation text NOT NULL, ord bigint NOT NULL,
  run_id   bigint NOT NULL, device_id text NOT NULL, phase text NOT NULL, policy text NOT NULL DEFAULT '',
  t0 double precision NOT NULL, t1 double precision NOT NULL, tokens bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (lease_id, incarnation, ord)
);
CREATE INDEX interval_run ON store.interval (run_id, t1);

-- Registry -----------------------------------------------------------------------------------------------------------
CREATE TABLE store.node (
  name         text PRIMARY KEY,
  address      text NOT NULL,                 -- host:port of its command endpoint
  incarnation  text NOT NULL,
  version      text NOT NULL DEFAULT '',
  facts        jsonb NOT NULL DEFAULT '{}',   -- cpus, memory_bytes, os, python, gpus
  state        text NOT NULL DEFAULT 'ready', -- ready | cordoned
  registered_at timestamptz NOT NULL DEFAULT now(),
  heartbeat_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE store.device (
  id        text PRIMARY KEY,                 -- "<node>.cpu0", "<node>.gpu0"; also the Dramatiq queue suffix
  node      text NOT NULL REFERENCES store.node(name),
  kind      text NOT NULL,                    -- cpu | cuda
  ordinal   int NOT NULL,
  name      text NOT NULL DEFAULT '',
  memory_bytes bigint NOT NULL DEFAULT 0,
  pool      text NOT NULL DEFAULT 'default',
  state     text NOT NULL DEFAULT 'ready',    -- ready | cordoned | lost
  facts     jsonb NOT NULL DEFAULT '{}'
);

-- Exclusive, expiring claims. `held` or `releasing` keeps the device; only the node's proof makes a lease `ended`.
CREATE TABLE store.lease (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  device_id   text NOT NULL REFERENCES store.device(id),
  run_id      bigint NOT NULL,
  use         text NOT NULL,                  -- engine | trainer
  state       text NOT NULL DEFAULT 'held',   -- held | releasing | ended
  fence       bigint NOT NULL DEFAULT 0,      -- raised at each hosting; a child of an older fence is refused
  token       uuid,                           -- device worker that hosts it
  incarnation text NOT NULL DEFAULT '',       -- the child that serves it now, '' when none
  endpoint    text NOT NULL DEFAULT '',       -- http://host:port of the child
  secret      text NOT NULL DEFAULT '',       -- bearer token of the child
  pid         int,
  pid_started double precision NOT NULL DEFAULT 0, -- start time of `pid`: a reused number is another process
  expires_at  timestamptz NOT NULL DEFAULT now() + interval '30 seconds',
  granted_at  timestamptz NOT NULL DEFAULT now(),
  ended_at    timestamptz,
  reason      text NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX lease_exclusive ON store.lease (device_id) WHERE state <> 'ended';
CREATE INDEX lease_run ON store.lease (run_id) WHERE state <> 'ended';

-- What an engine wholly holds now: routers read it, an engine's own 409 corrects it.
CREATE TABLE store.engine_policy (
  lease_id bigint NOT NULL, incarnation text NOT NULL, policy text NOT NULL, version int NOT NULL, digest text NOT NULL,
  at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (lease_id, policy)
);
