-- What the pool arbiter and the quotas need to know of a run: whose it is, and how soon it should be served.
ALTER TABLE store.run_state
  ADD COLUMN project  text NOT NULL DEFAULT 'default',
  ADD COLUMN priority int  NOT NULL DEFAULT 50;         -- 0 to 100, larger first
