-- One row per cut, whoever wanted it: where it lies, what it holds, who keeps it.
DELETE FROM store.checkpoint a USING store.checkpoint b
WHERE a.run_id = b.run_id AND a.step = b.step AND a.label > b.label;
ALTER TABLE store.checkpoint
  DROP CONSTRAINT checkpoint_pkey, ADD PRIMARY KEY (run_id, step),
  ADD COLUMN node       text NOT NULL DEFAULT '',           -- whose disk holds the folder
  ADD COLUMN parts      jsonb NOT NULL DEFAULT '{}',        -- policy -> version, digest of weights, digest of training state
  ADD COLUMN kept_by    text[] NOT NULL DEFAULT '{new}',    -- rules that keep it; new: no rule has spoken yet
  ADD COLUMN solved     double precision,
  ADD COLUMN team_score double precision,
  ADD COLUMN pinned_at  timestamptz,
  ADD COLUMN pinned_by  text NOT NULL DEFAULT '',
  ADD COLUMN state      text NOT NULL DEFAULT 'whole',      -- whole | missing | damaged | removing | removed
  ADD COLUMN state_text text NOT NULL DEFAULT '',
  ADD COLUMN read_until timestamptz;                        -- somebody reads the folder until then
UPDATE store.checkpoint a SET state = 'removed', bytes = 0, state_text = 'a newer checkpoint took its folder'
WHERE EXISTS (SELECT 1 FROM store.checkpoint b WHERE b.run_id = a.run_id AND b.path = a.path AND b.step > a.step);
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
  PRIMARY KEY (run_id, policy)
);
CREATE INDEX lineage_from ON store.lineage (from_run, from_step);
