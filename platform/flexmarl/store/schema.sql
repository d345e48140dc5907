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
  snapshot_seq  bigint NOT NULL DEFAULT 0,
  project       text NOT NULL DEFAULT 'default',
  priority      int NOT NULL DEFAULT 50,      -- 0 to 100, larger first
  -- What lists of runs are ordered by: the team reward of the progress, minus infinity before the first step.
  reward_key    double precision NOT NULL
    GENERATED ALWAYS AS (coalesce((progress ->> 'reward')::double precision, '-Infinity'::double precision)) STORED
) WITH (fillfactor = 50);
ALTER TABLE store.run_state ALTER COLUMN snapshot SET STORAGE EXTERNAL;

-- Facts on their way to the driver. No order is promised; producer_key makes a repetition harmless.
CREATE TABLE store.inbox (
  id           bigint GENERATED ALWAYS AS IDENTITY,
  run_id       bigint NOT NULL,
  producer_key text NOT NULL,
  body         jsonb NOT NULL,
  put_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, id),                   -- a run's oldest facts are found whatever waits of others
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
CREATE INDEX event_verbs ON store.event (run_id, seq) WHERE kind = 'run_verb';
-- Why children of a lease were lost is read beside its engine's state.
CREATE INDEX event_lost ON store.event (run_id, ((body ->> 'lease_id')::bigint), seq) WHERE kind = 'child_lost';

-- Lines for people: decisions, state changes, failures. Written by the driver with the event that caused them.
CREATE TABLE store.note (
  run_id bigint NOT NULL, seq bigint NOT NULL, ord int NOT NULL,
  level  text NOT NULL, actor text NOT NULL DEFAULT '', target text NOT NULL DEFAULT '', text text NOT NULL,
  at     timestamptz NOT NULL,
  cause  text NOT NULL DEFAULT '',             -- request it follows from
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
  cause      text NOT NULL DEFAULT '',        -- request that led to it, when a verb did
  holder     text NOT NULL DEFAULT '',        -- place of the process that took it; its successor there gives it back
  reason     text NOT NULL DEFAULT '',        -- why it was decided, for people
  held       boolean NOT NULL DEFAULT false,  -- what a rollout command plays stands still for a while
  PRIMARY KEY (run_id, no)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX command_due ON store.command (run_id, next_send) WHERE status IN ('open', 'taken');
CREATE INDEX command_lease ON store.command (lease_id) WHERE status IN ('open', 'taken');
CREATE INDEX command_made ON store.command (run_id, created_at);
CREATE INDEX command_holder ON store.command (holder) WHERE status = 'taken' AND holder <> '';
CREATE INDEX command_cohort ON store.command (run_id, ((body ->> 'cohort')::int)) WHERE kind = 'play_groups';
-- Decisions of one policy are read newest first from an index.
CREATE INDEX command_policy ON store.command (run_id, (coalesce(body ->> 'policy', body #>> '{ref,policy}')), no)
  WHERE coalesce(body ->> 'policy', body #>> '{ref,policy}') IS NOT NULL;

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
  facts       jsonb NOT NULL DEFAULT '{}',    -- what the environment counted, by name: parts of a score, reasons
  judged      jsonb NOT NULL DEFAULT '[]',    -- answers with all that was said of them: role, turn, parts, why
  said        text NOT NULL DEFAULT '',       -- what was said, turn after turn as in the transcript, see store.data.said
  said_marks  bytea NOT NULL DEFAULT '\x0000000000000000', -- Bloom filter of the trigrams of said: a search reads few texts
  breaks      jsonb NOT NULL DEFAULT '{}',    -- chains that broke: cause -> [[role, turn that began anew], ...]
  started_at  timestamptz NOT NULL,
  finished_at timestamptz NOT NULL,
  seconds     real NOT NULL GENERATED ALWAYS AS (extract(epoch FROM finished_at - started_at)::real) STORED,
  PRIMARY KEY (run_id, draw, member, attempt) INCLUDE (team_score, tokens, seconds, turns, solved, status, cohort)
) PARTITION BY LIST (run_id);
ALTER TABLE store.episode ALTER COLUMN said SET STORAGE EXTERNAL, ALTER COLUMN said_marks SET STORAGE MAIN;
CREATE INDEX episode_cohort ON store.episode (run_id, cohort);

-- Lists of a run's trajectories: every order has an index that also holds what lists filter by, so that a page of a run
-- with a million episodes is cut from the index alone, also when what matches lies far behind the position.
CREATE INDEX episode_by_score ON store.episode (run_id, team_score, draw, member, attempt)
  INCLUDE (tokens, seconds, turns, solved, status, cohort);
CREATE INDEX episode_by_tokens ON store.episode (run_id, tokens, draw, member, attempt)
  INCLUDE (team_score, seconds, turns, solved, status, cohort);
CREATE INDEX episode_by_seconds ON store.episode (run_id, seconds, draw, member, attempt)
  INCLUDE (team_score, tokens, turns, solved, status, cohort);
CREATE INDEX episode_unfinished ON store.episode (run_id, draw, member, attempt) WHERE status <> 'finished';
CREATE INDEX episode_broken ON store.episode (run_id, draw, member, attempt) WHERE breaks <> '{}';

-- What a list cannot hold in an index: words of the task's title, and the versions it was played with.
CREATE INDEX episode_title ON store.episode USING gin (to_tsvector('simple', task ->> 'title'));
CREATE INDEX episode_pins ON store.episode USING gin (pins jsonb_path_ops);

-- Immutable training rows. A row is a chain: what one policy read and said in an episode, token by token, while each prompt
-- began with all that came before it; in closed-word games that is a single turn. payload = little-endian int32 context ids
-- | int32 sampled ids | float32 log-probs of these | int32 allowed ids.
CREATE TABLE store.sample (
  run_id       bigint NOT NULL,
  draw         int NOT NULL,
  member       int NOT NULL,
  attempt      smallint NOT NULL,
  role         text NOT NULL,
  turn         smallint NOT NULL,             -- first of the chain, among the role's turns in the episode
  policy       text NOT NULL,
  version      int NOT NULL,                  -- oldest version of any response token
  segments     int[] NOT NULL,                -- version, tokens, version, tokens, ... over the response
  n_prompt     int NOT NULL,
  n_response   int NOT NULL,
  n_allowed    int NOT NULL DEFAULT 0,        -- see the column's comment
  spans        jsonb,                         -- of several turns: [[context tokens, sampled tokens, finish, reward, engine,
                                              -- latency_ms, offset, grammar], ...], see store.data.spans; NULL: one, which
                                              -- the columns tell and whose reply was held to no grammar
  finish       text NOT NULL,                 -- stop | length | abort
  reward       real NOT NULL DEFAULT 0,
  temperature  real NOT NULL DEFAULT 1,
  engine       text NOT NULL DEFAULT '',      -- incarnation that answered
  latency_ms   real NOT NULL DEFAULT 0,
  payload      bytea,                         -- NULL: by reference, or trimmed
  segment      bigint,                        -- where a payload by reference lies
  seg_offset   bigint,
  digest       bytea,
  PRIMARY KEY (run_id, draw, member, attempt, role, turn),
  -- Tokens that the run's setting does not keep leave once they are trained: null in both says so.
  CONSTRAINT sample_payload_somewhere CHECK (num_nonnulls(payload, segment) <= 1)
) PARTITION BY LIST (run_id);
ALTER TABLE store.sample ALTER COLUMN payload SET STORAGE EXTERNAL;
COMMENT ON COLUMN store.sample.n_allowed IS
  '0: the whole vocabulary; below zero: so many ids that follow each other, of which the payload holds the first';

-- Payloads by reference: a large payload lies in a segment file that its writer appended to and flushed to the disk
-- before it wrote the row. The row keeps where it lies and its digest; its lengths give the size.

-- A folder of segment files, known by the token it holds, wherever it is mounted or moved to.
CREATE TABLE store.payload_place (
  place text PRIMARY KEY,
  host  text NOT NULL,                        -- machine that told of it last
  path  text NOT NULL,
  at    timestamptz NOT NULL DEFAULT now()
);

-- One file per writer, run and epoch. Its number is the writer's choice, so that it is registered with its first rows.
CREATE TABLE store.segment (
  id         bigint PRIMARY KEY,
  run_id     bigint NOT NULL,
  epoch      int NOT NULL,
  place      text NOT NULL,
  retired_at timestamptz                      -- its rows are gone: whoever reaches the place removes the file
);
CREATE INDEX segment_run ON store.segment (run_id);

-- Samples of an ended run that left the store; its curves, episodes and log stay.
CREATE TABLE store.retirement (
  run_id   bigint PRIMARY KEY,
  epoch    int NOT NULL,                      -- rows of a later epoch stay
  seq      bigint NOT NULL,                   -- events up to it told of samples that are gone
  samples  bigint NOT NULL,
  began_at timestamptz NOT NULL DEFAULT now(),
  ended_at timestamptz,                       -- NULL: interrupted, the next janitor goes on
  -- Apart from what a retirement under way is about to remove: a run that came to life again takes its table back.
  gone_seq     bigint NOT NULL DEFAULT 0,     -- events up to it told of samples that are gone
  gone_samples bigint NOT NULL DEFAULT 0
);

-- How far a run's micro-batches have been looked at for tokens that its setting does not keep.
CREATE TABLE store.trimming (
  run_id bigint NOT NULL, policy text NOT NULL, no int NOT NULL, payloads bigint NOT NULL DEFAULT 0,
  bytes  bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (run_id, policy)
);

-- Progress of samples. Written by the driver at the cut; `accumulated` and `applied` by the transactions of the events.
CREATE TABLE store.micro_batch (
  run_id      bigint NOT NULL,
  policy      text NOT NULL,
  no          int NOT NULL,
  cohort      int NOT NULL,
  status      text NOT NULL DEFAULT 'cut',    -- cut | accumulated | applied | void
  reason      text NOT NULL DEFAULT '',
  keys        jsonb NOT NULL,                 -- [[draw, member, attempt, role, first turn, turns], ...]
  advantages  real[] NOT NULL,                -- of each turn of each row, one behind the other
  weights     real[] NOT NULL,
  accumulator text NOT NULL DEFAULT '',
  stats       jsonb,
  version     int,                            -- version its step committed
  cut_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_at     timestamptz,
  replayed    boolean NOT NULL DEFAULT false, -- of the archive: earlier steps were taken on its rows
  PRIMARY KEY (run_id, policy, no)
) WITH (fillfactor = 60);
CREATE INDEX micro_batch_cohort ON store.micro_batch (run_id, cohort);
CREATE INDEX micro_batch_cut ON store.micro_batch (run_id, cut_at, policy, no);

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

-- How a policy's ids become text: tokenizer.json of its model source, byte for byte; and how it is spoken to in messages.
CREATE TABLE store.tokenizer (
  run_id bigint NOT NULL, policy text NOT NULL, body text NOT NULL,
  chat   text NOT NULL DEFAULT '',               -- chat format as JSON; empty: the model knows no messages
  PRIMARY KEY (run_id, policy)
);

-- What replies were held to, as JSON (contracts.reply_grammars), each text once; turns of samples name it by its digest.
CREATE TABLE store.reply_grammar (
  run_id bigint NOT NULL, digest text NOT NULL, body text NOT NULL,
  PRIMARY KEY (run_id, digest)
);

-- One row per cut, whoever wanted it: where it lies, what it holds, who keeps it.
CREATE TABLE store.checkpoint (
  run_id bigint NOT NULL, label text NOT NULL, step int NOT NULL, versions jsonb NOT NULL, path text NOT NULL,
  bytes  bigint NOT NULL, facts jsonb NOT NULL DEFAULT '{}', at timestamptz NOT NULL DEFAULT clock_timestamp(),
  node       text NOT NULL DEFAULT '',           -- whose disk holds the folder
  parts      jsonb NOT NULL DEFAULT '{}',        -- policy -> version, digest of weights, digest of training state
  kept_by    text[] NOT NULL DEFAULT '{new}',    -- rules that keep it; new: no rule has spoken yet
  solved     double precision,
  team_score double precision,
  pinned_at  timestamptz,
  pinned_by  text NOT NULL DEFAULT '',
  state      text NOT NULL DEFAULT 'whole',      -- whole | missing | damaged | removing | removed
  state_text text NOT NULL DEFAULT '',
  read_until timestamptz,                        -- somebody reads the folder until then
  PRIMARY KEY (run_id, step)
);
CREATE INDEX checkpoint_of_node ON store.checkpoint (node) WHERE state <> 'removed';

-- Where a policy's version 0 comes from when it is another run's version.
CREATE TABLE store.lineage (
  run_id       bigint NOT NULL,
  policy       text NOT NULL,
  from_run     bigint NOT NULL,
  from_policy  text NOT NULL,
  from_version int NOT NULL,
  from_step    int NOT NULL,
  checkpoint   boolean NOT NULL,                 -- of the checkpoint after from_step; else of the newest vector
  digest       text NOT NULL,
  state        text NOT NULL DEFAULT '',         -- training state taken over, if any
  bound_at     timestamptz,                      -- since when it is this run's own version 0
  -- Rights to another run's weights are checked again until they are read.
  granted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  revoked_at   timestamptz,
  PRIMARY KEY (run_id, policy)
);
CREATE INDEX lineage_from ON store.lineage (from_run, from_step);

-- Series: one point per (name, agent, stat, step). agent '' is the team.
CREATE TABLE store.metric (
  run_id bigint NOT NULL, name text NOT NULL, agent text NOT NULL DEFAULT '', stat text NOT NULL DEFAULT 'mean',
  step   int NOT NULL, value double precision NOT NULL, at timestamptz NOT NULL,
  samples bigint NOT NULL DEFAULT 0,          -- samples trained so far, an x axis
  PRIMARY KEY (run_id, name, agent, stat, step)
);

-- Summaries of 256 consecutive steps of a series. A chart of a long series and the catalogue read them, not every point.
-- Triggers of store.metric keep them, in the transaction of the points: whoever writes points need not know. Values that
-- are no finite numbers stay in store.metric and are no part of a summary. Points leave only with their whole run.
CREATE TABLE store.metric_span (
  run_id bigint NOT NULL, name text NOT NULL, agent text NOT NULL, stat text NOT NULL,
  span   int NOT NULL,                        -- step >> 8
  points int NOT NULL,
  first_step int NOT NULL, first_value double precision NOT NULL,
  last_step  int NOT NULL, last_value  double precision NOT NULL,
  min_step   int NOT NULL, min_value   double precision NOT NULL,
  max_step   int NOT NULL, max_value   double precision NOT NULL,
  at_low     timestamptz NOT NULL, at_high      timestamptz NOT NULL,
  samples_low bigint NOT NULL,     samples_high bigint NOT NULL,
  PRIMARY KEY (run_id, name, agent, stat, span)
) WITH (fillfactor = 70);

CREATE FUNCTION store.add_metric_spans() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO store.metric_span AS s
  SELECT run_id, name, agent, stat, step >> 8, count(*),
    min(step), (array_agg(value ORDER BY step))[1], max(step), (array_agg(value ORDER BY step DESC))[1],
    (array_agg(step ORDER BY value, step))[1], min(value), (array_agg(step ORDER BY value DESC, step))[1], max(value),
    min(at), max(at), min(samples), max(samples)
  FROM fresh WHERE value - value = 0
  GROUP BY run_id, name, agent, stat, step >> 8
  ORDER BY 1, 2, 3, 4, 5
  ON CONFLICT (run_id, name, agent, stat, span) DO UPDATE SET
    points = s.points + excluded.points,
    first_value = CASE WHEN excluded.first_step < s.first_step THEN excluded.first_value ELSE s.first_value END,
    first_step = least(s.first_step, excluded.first_step),
    last_value = CASE WHEN excluded.last_step > s.last_step THEN excluded.last_value ELSE s.last_value END,
    last_step = greatest(s.last_step, excluded.last_step),
    min_step = CASE WHEN excluded.min_value < s.min_value THEN excluded.min_step ELSE s.min_step END,
    min_value = least(s.min_value, excluded.min_value),
    max_step = CASE WHEN excluded.max_value > s.max_value THEN excluded.max_step ELSE s.max_step END,
    max_value = greatest(s.max_value, excluded.max_value),
    at_low = least(s.at_low, excluded.at_low), at_high = greatest(s.at_high, excluded.at_high),
    samples_low = least(s.samples_low, excluded.samples_low),
    samples_high = greatest(s.samples_high, excluded.samples_high);
  IF current_setting('flexmarl.spans_renewed', true) = 'yes' THEN
    PERFORM set_config('flexmarl.spans_renewed', 'no', true);
    UPDATE store.metric_span s SET points = k.points
    FROM (
      SELECT f.run_id, f.name, f.agent, f.stat, f.span, count(*) AS points
      FROM (SELECT DISTINCT run_id, name, agent, stat, step >> 8 AS span FROM fresh) f
      JOIN store.metric m ON m.run_id = f.run_id AND m.name = f.name AND m.agent = f.agent AND m.stat = f.stat
        AND m.step BETWEEN f.span << 8 AND (f.span << 8) + 255
      WHERE m.value - m.value = 0 GROUP BY 1, 2, 3, 4, 5) k
    WHERE (s.run_id, s.name, s.agent, s.stat, s.span) = (k.run_id, k.name, k.agent, k.stat, k.span);
  END IF;
  RETURN NULL;
END $$;

-- A point that was written again may have been an extreme: its summary is made anew. The deletion takes the lock, so
-- that the statement behind it sees the points of whoever held the summary before.
CREATE FUNCTION store.renew_metric_spans() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM fresh) THEN
    RETURN NULL;
  END IF;
  -- INSERT ... ON CONFLICT DO UPDATE comes here first and then above, with what it added in both: it must not count twice.
  PERFORM set_config('flexmarl.spans_renewed', 'yes', true);
  DELETE FROM store.metric_span s USING (SELECT DISTINCT run_id, name, agent, stat, step >> 8 AS span FROM fresh) k
  WHERE (s.run_id, s.name, s.agent, s.stat, s.span) = (k.run_id, k.name, k.agent, k.stat, k.span);
  INSERT INTO store.metric_span
  SELECT m.run_id, m.name, m.agent, m.stat, k.span, count(*),
    min(step), (array_agg(value ORDER BY step))[1], max(step), (array_agg(value ORDER BY step DESC))[1],
    (array_agg(step ORDER BY value, step))[1], min(value), (array_agg(step ORDER BY value DESC, step))[1], max(value),
    min(at), max(at), min(samples), max(samples)
  FROM (SELECT DISTINCT run_id, name, agent, stat, step >> 8 AS span FROM fresh) k
  JOIN store.metric m ON m.run_id = k.run_id AND m.name = k.name AND m.agent = k.agent AND m.stat = k.stat
    AND m.step BETWEEN k.span << 8 AND (k.span << 8) + 255
  WHERE m.value - m.value = 0
  GROUP BY m.run_id, m.name, m.agent, m.stat, k.span;
  RETURN NULL;
END $$;

CREATE TRIGGER metric_added AFTER INSERT ON store.metric
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION store.add_metric_spans();
CREATE TRIGGER metric_changed AFTER UPDATE ON store.metric
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION store.renew_metric_spans();

-- Closed busy intervals of devices. Host clock of the node, seconds since the epoch.
CREATE TABLE store.interval (
  lease_id bigint NOT NULL, incarnation text NOT NULL, ord bigint NOT NULL,
  run_id   bigint NOT NULL, device_id text NOT NULL, phase text NOT NULL, policy text NOT NULL DEFAULT '',
  t0 double precision NOT NULL, t1 double precision NOT NULL, tokens bigint NOT NULL DEFAULT 0,
  bytes   bigint NOT NULL DEFAULT 0,          -- what a swap of a policy moved
  steps   int NOT NULL DEFAULT 0,             -- how fast an engine is, by how many requests it has at once
  prompts bigint NOT NULL DEFAULT 0,
  cpu     double precision NOT NULL DEFAULT 0, -- seconds of the processor: slowness beside other work shows in it
  PRIMARY KEY (lease_id, incarnation, ord)
);
CREATE INDEX interval_run ON store.interval (run_id, t1);
-- Busy shares of pools by hour are read by time, over all runs.
CREATE INDEX interval_time ON store.interval (t1);
CREATE INDEX interval_swaps ON store.interval (run_id, t1, lease_id, ord)
  WHERE phase IN ('bind', 'suspend', 'resume', 'sleep', 'wake');

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
CREATE INDEX ruling_policy ON store.ruling (run_id, policy, seq, ord) WHERE policy <> '';

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
  seats jsonb NOT NULL DEFAULT '{}',          -- role -> [turns without a reply, those of them that an engine has]
  PRIMARY KEY (run_id, worker)
) WITH (fillfactor = 50);

-- Replies that did not stay with the engine that took them, over the life of a rollout worker.
CREATE TABLE store.moved_turns (
  run_id bigint NOT NULL, worker text NOT NULL, cause text NOT NULL, engine text NOT NULL,
  turns bigint NOT NULL, at timestamptz NOT NULL,
  PRIMARY KEY (run_id, worker, cause, engine)
) WITH (fillfactor = 70);

-- What rollout workers exchanged with other installations, as each told last, and the contents that a run has used.
CREATE TABLE store.sharing (
  run_id bigint NOT NULL, worker text NOT NULL, at timestamptz NOT NULL, state text NOT NULL, reason text NOT NULL,
  published bigint NOT NULL, received bigint NOT NULL, used bigint NOT NULL,
  refused jsonb NOT NULL,                     -- reason -> rollouts
  PRIMARY KEY (run_id, worker)
) WITH (fillfactor = 50);

CREATE TABLE store.shared_rollout (
  run_id bigint NOT NULL, digest text NOT NULL,
  PRIMARY KEY (run_id, digest)
);

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

-- Sessions of agent programs: episodes whose calls come from outside. A rollout worker opens and ends them; the control
-- plane hands out open ones, and keeps what programs report until the worker has read it.
CREATE TABLE store.program_session (
  id         uuid PRIMARY KEY,
  run_id     bigint NOT NULL,
  base_url   text NOT NULL,                   -- of the worker's gateway
  held_out   boolean NOT NULL,
  task       int NOT NULL,
  draw       int NOT NULL,                    -- draw, member, attempt: the episode that it plays
  member     int NOT NULL,
  attempt    int NOT NULL,
  state      text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'taken', 'awaiting_reward', 'finished', 'ended')),
  key_digest text UNIQUE,                     -- SHA-256 of the key that its program was given
  report     jsonb NOT NULL DEFAULT '{}',     -- what the program reported
  reason     text NOT NULL DEFAULT '',        -- why it ended without a report that counts
  opened_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  taken_at   timestamptz,
  reward_deadline_at timestamptz,             -- reports count until then; set when its program has ended without one
  ended_at   timestamptz,
  seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(), -- when its worker said last that it is there, and then:
  calls      int NOT NULL DEFAULT 0,          -- calls that it has answered
  tokens     int NOT NULL DEFAULT 0,          -- sampled in these
  left_s     real,                            -- of the time that its program may take between calls
  output     text NOT NULL DEFAULT '',        -- end of what a program wrote that a rollout worker started
  changes    jsonb,                           -- what a command made of its workspace: {files, count, diff, cut}
  image      text NOT NULL DEFAULT '',        -- of the container that the command ran in, with its digest
  taken_by    text NOT NULL DEFAULT '',       -- name of the actor that took it; empty where its worker starts its program
  reported_by text NOT NULL DEFAULT ''        -- name of the actor whose report was taken last
) WITH (fillfactor = 70);
CREATE INDEX program_session_run ON store.program_session (run_id, opened_at);
CREATE INDEX program_session_open ON store.program_session (run_id, opened_at) WHERE state = 'open';

-- Tools of servers behind URLs, as the rollout worker that asked first found them; never changed, so all agents of a run
-- are shown the same. Text, since prompts hold the members of schemas in their order.
CREATE TABLE store.tool_listing (
  run_id    bigint NOT NULL,
  place     int NOT NULL,                         -- of the server in environment.tools.servers
  tools     text NOT NULL,                        -- JSON: [{name, description, parameters}]
  listed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, place)
);

-- Tables of facts are empty at one moment and long at the next, so no statistics say how to read them: both functions
-- always go by the primary keys. `lock_timeout`: rows that the session of a stalled driver holds are not waited for.
CREATE FUNCTION store.facts_waiting(run bigint, behind bigint, besides bigint[], at_most int)
RETURNS TABLE (id bigint, producer_key text, body text, known boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT i.id, i.producer_key, i.body::text,
    (SELECT true FROM store.handled h WHERE h.run_id = run AND h.producer_key = i.producer_key LIMIT 1) IS NOT NULL
  FROM store.inbox i WHERE i.run_id = run AND i.id > behind AND i.id <> ALL (besides)
  ORDER BY i.id LIMIT at_most;
END $$;

CREATE FUNCTION store.move_facts(run bigint, ids bigint[], seqs bigint[], moment timestamptz) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET lock_timeout = '200ms' AS $$
DECLARE moved bigint;
BEGIN
  IF cardinality(ids) = 0 THEN
    RETURN;
  END IF;
  WITH taken AS (
    DELETE FROM store.inbox i USING unnest(ids, seqs) AS wanted(id, seq)
    WHERE i.run_id = run AND i.id = wanted.id RETURNING wanted.seq, i.producer_key, i.body
  ), remembered AS (
    INSERT INTO store.handled (run_id, producer_key, seq) SELECT run, t.producer_key, t.seq FROM taken t
  ), logged AS (
    INSERT INTO store.event (run_id, seq, kind, body, at)
    SELECT run, t.seq, t.body ->> 'kind', t.body, moment FROM taken t RETURNING 1
  )
  SELECT count(*) INTO moved FROM logged;
  PERFORM store.insist(moved = cardinality(ids), 'facts were taken by somebody else');
END $$;

-- Ends the transaction of whoever is not the run's driver any more, also when it does not wait for answers.
CREATE FUNCTION store.insist(holds boolean, otherwise text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF holds IS NOT TRUE THEN
    RAISE EXCEPTION '%', otherwise USING ERRCODE = 'FX001';
  END IF;
END $$;

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

-- Models that runs may name: imported once, by a node, into the state plane; then only `archived_at` changes.
CREATE TABLE store.model (
  id          uuid PRIMARY KEY,
  project     text NOT NULL, name text NOT NULL, revision int NOT NULL,
  source      jsonb NOT NULL,                    -- where it came from: {type, ...} as specifications write it
  owner       text NOT NULL DEFAULT '',          -- name of who asked for it
  owner_id    text NOT NULL DEFAULT '',          -- their account
  state       text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
  reason      text NOT NULL DEFAULT '', reason_text text NOT NULL DEFAULT '',
  now_at      text NOT NULL DEFAULT '',          -- what is being done
  takes       int NOT NULL DEFAULT 0,            -- how often a node took it; the fence of its writes
  node        text NOT NULL DEFAULT '',          -- who took it last; keeps the content
  lease_until timestamptz,
  digest      text NOT NULL DEFAULT '',          -- of the content, once it is done
  facts       jsonb NOT NULL DEFAULT '{}',       -- what was found: architecture, parameters, context, tokenizer, template
  from_run    bigint, from_step int,             -- the run's checkpoint that it is made of; null: it is of no run
  granted_at  timestamptz,                       -- when the right to read that run was found last
  archived_at timestamptz,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(), updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  started_at  timestamptz, finished_at timestamptz,
  version     int NOT NULL DEFAULT 1,            -- raised by every change that people see
  UNIQUE (project, name, revision)
);
CREATE INDEX model_open ON store.model (id) WHERE state IN ('queued', 'running');

-- Packages of environments that runs may name: built once by a node; other hosts build the same again by its lock.
CREATE TABLE store.package (
  id          uuid PRIMARY KEY,
  project     text NOT NULL, name text NOT NULL, release text NOT NULL,   -- distribution and its version
  source      jsonb NOT NULL,                    -- {type: requirement | upload, ...}
  owner       text NOT NULL DEFAULT '', owner_id text NOT NULL DEFAULT '',
  state       text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'building', 'ready', 'failed', 'cancelled')),
  reason      text NOT NULL DEFAULT '', reason_text text NOT NULL DEFAULT '',
  now_at      text NOT NULL DEFAULT '',          -- what is being done
  log         text NOT NULL DEFAULT '',          -- end of what the build wrote
  takes       int NOT NULL DEFAULT 0,            -- how often a node took it; the fence of its writes
  node        text NOT NULL DEFAULT '',
  lease_until timestamptz,
  digest      text NOT NULL DEFAULT '',          -- of all that was installed, once it is ready
  lock        jsonb NOT NULL DEFAULT '[]',       -- what that is: [{name, version, sha256}]
  manifest    jsonb NOT NULL DEFAULT '{}',       -- what it offers
  archived_at timestamptz,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(), updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  started_at  timestamptz, finished_at timestamptz,
  version     int NOT NULL DEFAULT 1
);
CREATE INDEX package_open ON store.package (id) WHERE state IN ('queued', 'building');
CREATE INDEX package_named ON store.package (project, name, release);

-- Uploaded wheels and source distributions, by the digest of their bytes.
CREATE TABLE store.package_file (
  digest     text PRIMARY KEY,
  body       bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Rows of imported datasets, by the digest of all of them; never changed. Who may read them says the control plane.
CREATE TABLE store.dataset (
  digest     text PRIMARY KEY,                    -- SHA-256 of the lines with their sides, in order
  rows       int NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE store.dataset_row (
  digest   text NOT NULL REFERENCES store.dataset(digest) ON DELETE CASCADE,
  place    int NOT NULL,                          -- from 1, as in the file
  held_out boolean NOT NULL,
  prompt   text NOT NULL,                         -- what people search
  line     bytea NOT NULL,                        -- the whole row: messages, answer, columns
  PRIMARY KEY (digest, place)
);
CREATE INDEX dataset_row_words ON store.dataset_row USING gin (to_tsvector('simple', left(prompt, 20000)));

-- What somebody asked for of a dataset of a hub: a listing, or files, which a node brings as one archive in parts.
CREATE TABLE store.dataset_fetch (
  id          uuid PRIMARY KEY,
  project     text NOT NULL,
  source      jsonb NOT NULL,                    -- {repository, revision, secret, configuration, splits}
  most_bytes  bigint NOT NULL,                   -- of its files together
  owner       text NOT NULL DEFAULT '', owner_id text NOT NULL DEFAULT '',
  state       text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
  reason      text NOT NULL DEFAULT '', reason_text text NOT NULL DEFAULT '',
  now_at      text NOT NULL DEFAULT '',          -- what is being done
  done_bytes  bigint NOT NULL DEFAULT 0, bytes bigint NOT NULL DEFAULT 0,   -- fetched, of all; at the end the archive's
  takes       int NOT NULL DEFAULT 0,            -- how often a node took it; the fence of its writes
  node        text NOT NULL DEFAULT '',
  lease_until timestamptz,
  found       jsonb NOT NULL DEFAULT '{}',       -- the listing, or where the archive is from
  digest      text NOT NULL DEFAULT '',          -- SHA-256 of the archive, once it is done
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(), updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  started_at  timestamptz, finished_at timestamptz,
  version     int NOT NULL DEFAULT 1
);
CREATE INDEX dataset_fetch_open ON store.dataset_fetch (id) WHERE state IN ('queued', 'running');
CREATE INDEX dataset_fetch_digest ON store.dataset_fetch (project, digest) WHERE digest <> '';
CREATE TABLE store.dataset_fetch_part (
  fetch_id uuid NOT NULL REFERENCES store.dataset_fetch(id) ON DELETE CASCADE,
  place int NOT NULL,                            -- from 0
  body  bytea NOT NULL,
  PRIMARY KEY (fetch_id, place)
);

-- Registry -----------------------------------------------------------------------------------------------------------
CREATE TABLE store.node (
  name         text PRIMARY KEY,
  address      text NOT NULL,                 -- host:port of its command endpoint
  incarnation  text NOT NULL,
  version      text NOT NULL DEFAULT '',
  facts        jsonb NOT NULL DEFAULT '{}',   -- cpus, memory_bytes, os, python, gpus
  state        text NOT NULL DEFAULT 'ready', -- ready | cordoned | draining | gone; drained: draining with no lease left
  registered_at timestamptz NOT NULL DEFAULT now(),
  heartbeat_at timestamptz NOT NULL DEFAULT now(),
  note         text NOT NULL DEFAULT '',
  drain_mode   text NOT NULL DEFAULT '',      -- wait | move | stop, while draining
  drain_deadline timestamptz,                 -- of mode stop
  drain_by     text NOT NULL DEFAULT '',
  drain_since  timestamptz,
  ruled        int NOT NULL DEFAULT 1,        -- raised by every administrator's change
  load         jsonb NOT NULL DEFAULT '{}',   -- what its agent measured last
  peer_address text NOT NULL DEFAULT '',      -- host:port at which nodes with tokens of its pool read its contents
  peer_key     text NOT NULL DEFAULT ''       -- what they show there; made anew by each life of its agent
);

CREATE TABLE store.device (
  id        text PRIMARY KEY,                 -- "<node>.cpu0", "<node>.gpu0"; also the Dramatiq queue suffix
  node      text NOT NULL REFERENCES store.node(name),
  kind      text NOT NULL,                    -- cpu | cuda
  ordinal   int NOT NULL,
  name      text NOT NULL DEFAULT '',
  memory_bytes bigint NOT NULL DEFAULT 0,
  pool      text NOT NULL DEFAULT 'default',
  state     text NOT NULL DEFAULT 'ready',    -- ready | cordoned | draining | lost
  facts     jsonb NOT NULL DEFAULT '{}',
  note      text NOT NULL DEFAULT '',
  drain_mode text NOT NULL DEFAULT '',
  drain_deadline timestamptz,
  drain_by  text NOT NULL DEFAULT '',
  drain_since timestamptz,
  ruled     int NOT NULL DEFAULT 1,
  load      jsonb NOT NULL DEFAULT '{}',
  state_before text NOT NULL DEFAULT ''       -- of a lost device: what it is again when it comes back
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
  reason      text NOT NULL DEFAULT '',
  replaces    bigint NOT NULL DEFAULT 0,      -- lease that it stands in for while its run moves; 0 for none
  rendezvous  text NOT NULL DEFAULT '',       -- host:port where further ranks of a gang find its leader
  beside      bigint,                         -- lease of the engine whose device a trainer shares
  leader      bigint,                         -- of a further device of an engine: the lease that its child serves
  rank        int NOT NULL DEFAULT 0,         -- place of the device among those of an engine
  memory_bytes bigint NOT NULL DEFAULT 0,     -- leased with the device: what its child takes at most, as planned
  pool        text NOT NULL DEFAULT '',       -- of its device when it was granted: that pool's prices hold for it
  CONSTRAINT lease_place UNIQUE (id, device_id, run_id),
  CONSTRAINT lease_beside FOREIGN KEY (beside, device_id, run_id) REFERENCES store.lease (id, device_id, run_id),
  CONSTRAINT lease_beside_trains CHECK (beside IS NULL OR use = 'trainer'),
  CONSTRAINT lease_run_unique UNIQUE (id, run_id),
  CONSTRAINT lease_leader FOREIGN KEY (leader, run_id) REFERENCES store.lease (id, run_id),
  CONSTRAINT lease_leader_serves CHECK (leader IS NULL OR (use = 'engine' AND beside IS NULL AND leader <> id))
);
CREATE UNIQUE INDEX lease_exclusive ON store.lease (device_id) WHERE state <> 'ended' AND beside IS NULL;
CREATE UNIQUE INDEX lease_two ON store.lease (beside) WHERE state <> 'ended';
CREATE INDEX lease_run ON store.lease (run_id) WHERE state <> 'ended';
CREATE INDEX lease_further ON store.lease (leader) WHERE leader IS NOT NULL;

-- A trainer may share the device of an engine of its run. Who shares a device names the lease that holds it; once that
-- one ends, whoever is left holds the device alone, so that it is nobody else's before nothing of the run is on it.
CREATE FUNCTION store.left_alone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE store.lease SET beside = NULL WHERE beside = NEW.id AND state <> 'ended';
  RETURN NULL;
END $$;
CREATE TRIGGER lease_left_alone AFTER UPDATE OF state ON store.lease
  FOR EACH ROW WHEN (NEW.state = 'ended' AND OLD.state <> 'ended') EXECUTE FUNCTION store.left_alone();

CREATE FUNCTION store.lease_of_pool() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  SELECT pool INTO NEW.pool FROM store.device WHERE id = NEW.device_id;
  NEW.pool := coalesce(NEW.pool, '');         -- a device that does not exist is refused by its key
  RETURN NEW;
END $$;
CREATE TRIGGER lease_pool BEFORE INSERT ON store.lease FOR EACH ROW EXECUTE FUNCTION store.lease_of_pool();

-- What a device hour of a pool cost, from when on; without a price: nobody had said.
CREATE TABLE store.pool_price (
  pool  text NOT NULL,
  since timestamptz NOT NULL DEFAULT clock_timestamp(),
  price double precision CHECK (price >= 0),
  PRIMARY KEY (pool, since)
);

-- The devices of an engine are one: what becomes of the lease that its child serves becomes of the further ones.
CREATE FUNCTION store.further_devices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE store.lease SET state = NEW.state, reason = NEW.reason, ended_at = NEW.ended_at, expires_at = NEW.expires_at
    WHERE leader = NEW.id AND state <> 'ended';
  RETURN NULL;
END $$;
CREATE TRIGGER lease_further_devices AFTER UPDATE OF state ON store.lease
  FOR EACH ROW WHEN (NEW.state <> OLD.state AND NEW.leader IS NULL AND NEW.use = 'engine')
  EXECUTE FUNCTION store.further_devices();

-- What an engine wholly holds now: routers read it, an engine's own 409 corrects it.
CREATE TABLE store.engine_policy (
  lease_id bigint NOT NULL, incarnation text NOT NULL, policy text NOT NULL, version int NOT NULL, digest text NOT NULL,
  at timestamptz NOT NULL DEFAULT now(),
  former_version int,                         -- the version loaded before: groups pinned to it play on
  former_digest  text,
  PRIMARY KEY (lease_id, policy)
);

-- Hosts that a pool's provider was asked for: one row per job. A row is written before its job is asked for and named by
-- its id, so that a job whose number was never noted is found again.
CREATE TABLE store.host_job (
  id           uuid PRIMARY KEY,
  pool         text NOT NULL,
  provider     text NOT NULL,                 -- slurm, ray or kubernetes
  node         text NOT NULL,                 -- name under which its host registers
  options      jsonb NOT NULL,                -- as the pool had them
  state        text NOT NULL DEFAULT 'requested', -- requested | refused | pending | running | leaving | ended | failed
  native       text NOT NULL DEFAULT '',      -- the provider's name of it
  reason       text NOT NULL DEFAULT '',      -- in the provider's words
  next_step    text NOT NULL DEFAULT '',
  place        text NOT NULL DEFAULT '',      -- the provider's name of the host
  why          text NOT NULL DEFAULT '',      -- what it was asked for, then what ended it
  unwanted     boolean NOT NULL DEFAULT false,
  tries        int NOT NULL DEFAULT 0,        -- refusals
  try_at       timestamptz NOT NULL DEFAULT now(),
  requested_at timestamptz NOT NULL DEFAULT now(),
  submitted_at timestamptz,
  started_at   timestamptz,
  leaving_at   timestamptz,                   -- when its host goes
  idle_since   timestamptz,
  ended_at     timestamptz
);
CREATE UNIQUE INDEX host_job_node ON store.host_job (node) WHERE ended_at IS NULL;
CREATE INDEX host_job_pool ON store.host_job (pool, requested_at DESC);

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

-- Projects that have another weight than 1. The control plane alone writes it, with the project.
CREATE TABLE store.project_weight (project text PRIMARY KEY, weight double precision NOT NULL CHECK (weight > 0));

-- What each project has of each pool: a lease that is not ended is a seat (of an engine one for each of its devices),
-- two of one move and two on one device are one, and what a run lacks of a gang that it holds a part of is its seat still.
CREATE VIEW store.seat AS
SELECT r.project, d.pool, 1 AS devices
  FROM store.lease l JOIN store.device d ON d.id = l.device_id JOIN store.run_state r USING (run_id)
  WHERE l.state <> 'ended' AND l.beside IS NULL AND NOT EXISTS (
    SELECT 1 FROM store.lease old
    WHERE old.id = l.replaces AND old.run_id = l.run_id AND old.state <> 'ended')
UNION ALL
SELECT r.project, wanted.pool, wanted.devices
  FROM store.command c JOIN store.run_state r USING (run_id)
    CROSS JOIN LATERAL (VALUES
      (c.body ->> 'pool', (c.body ->> 'engines')::int * coalesce((c.body ->> 'engine_devices')::int, 1)),
      (coalesce(nullif(c.body ->> 'trainer_pool', ''), c.body ->> 'pool'), (c.body ->> 'trainers')::int)
    ) AS wanted(pool, devices)
  WHERE c.kind = 'request_devices' AND c.status = 'open' AND coalesce((c.body ->> 'replaces')::bigint, 0) = 0
    AND NOT c.body ? 'extra'
    AND wanted.devices > 0
    AND r.status NOT IN ('completed', 'failed', 'cancelled', 'killed')
    AND EXISTS (SELECT 1 FROM store.lease l WHERE l.run_id = c.run_id AND l.state = 'held');

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
