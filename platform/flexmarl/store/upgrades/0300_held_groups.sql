-- What a rollout command plays may stand still for a while.
ALTER TABLE store.command ADD COLUMN held boolean NOT NULL DEFAULT false;
