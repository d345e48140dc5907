-- How fast an engine is, by how many requests it has at once, is read from what it did.
ALTER TABLE store.interval ADD COLUMN steps int NOT NULL DEFAULT 0;
ALTER TABLE store.interval ADD COLUMN prompts bigint NOT NULL DEFAULT 0;
