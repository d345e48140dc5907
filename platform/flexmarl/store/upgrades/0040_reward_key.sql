-- What lists of runs are ordered by: the team reward of the progress, minus infinity before the first step.
ALTER TABLE store.run_state
  ADD COLUMN reward_key double precision NOT NULL
    GENERATED ALWAYS AS (coalesce((progress ->> 'reward')::double precision, '-Infinity'::double precision)) STORED;
