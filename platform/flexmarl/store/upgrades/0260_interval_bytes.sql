-- What a swap of a policy moved stands beside how long it took.
ALTER TABLE store.interval ADD COLUMN bytes bigint NOT NULL DEFAULT 0;
