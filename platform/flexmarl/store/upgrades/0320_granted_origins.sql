-- Rights to another run's weights are checked again until they are read: when they were found last, or that they were lost.
ALTER TABLE store.lineage ADD COLUMN granted_at timestamptz NOT NULL DEFAULT clock_timestamp();
ALTER TABLE store.lineage ADD COLUMN revoked_at timestamptz;
