-- Who took a command: the place of a process. A successor in the same place gives back at once what the one before held.
ALTER TABLE store.command ADD COLUMN holder text NOT NULL DEFAULT '';
CREATE INDEX command_holder ON store.command (holder) WHERE status = 'taken' AND holder <> '';
