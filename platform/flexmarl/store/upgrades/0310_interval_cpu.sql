-- How much slower work was for what went on beside it is read from what it took of the processor.
ALTER TABLE store.interval ADD COLUMN cpu double precision NOT NULL DEFAULT 0;
