-- Engines serve the last two versions of a policy that they loaded: groups pinned to the older one play on.
ALTER TABLE store.engine_policy
  ADD COLUMN former_version int,
  ADD COLUMN former_digest  text;
