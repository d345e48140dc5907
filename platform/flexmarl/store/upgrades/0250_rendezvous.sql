-- Where the further ranks of a gang find its leader, as that child said when it became ready.
ALTER TABLE store.lease ADD COLUMN rendezvous text NOT NULL DEFAULT ''; -- host:port, '' where a child leads no gang
