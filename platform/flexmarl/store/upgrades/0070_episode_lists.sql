-- Lists of a run's trajectories: every order has an index that also holds what lists filter by, so that a page of a run
-- with a million episodes is cut from the index alone, also when what matches lies far behind the position.
ALTER TABLE store.episode
  ADD COLUMN seconds real NOT NULL GENERATED ALWAYS AS (extract(epoch FROM finished_at - started_at)::real) STORED;

ALTER TABLE store.episode DROP CONSTRAINT episode_pkey;
ALTER TABLE store.episode ADD CONSTRAINT episode_pkey PRIMARY KEY (run_id, draw, member, attempt)
  INCLUDE (team_score, tokens, seconds, turns, solved, status, cohort);
CREATE INDEX episode_by_score ON store.episode (run_id, team_score, draw, member, attempt)
  INCLUDE (tokens, seconds, turns, solved, status, cohort);
CREATE INDEX episode_by_tokens ON store.episode (run_id, tokens, draw, member, attempt)
  INCLUDE (team_score, seconds, turns, solved, status, cohort);
CREATE INDEX episode_by_seconds ON store.episode (run_id, seconds, draw, member, attempt)
  INCLUDE (team_score, tokens, turns, solved, status, cohort);
CREATE INDEX episode_unfinished ON store.episode (run_id, draw, member, attempt) WHERE status <> 'finished';

-- What a list cannot hold in an index: words of the task's title, and the versions it was played with.
CREATE INDEX episode_title ON store.episode USING gin (to_tsvector('simple', task ->> 'title'));
CREATE INDEX episode_pins ON store.episode USING gin (pins jsonb_path_ops);

-- Which micro-batches hold the turns of an episode is asked by its cohort.
CREATE INDEX micro_batch_cohort ON store.micro_batch (run_id, cohort);
