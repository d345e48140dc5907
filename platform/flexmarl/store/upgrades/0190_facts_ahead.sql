-- Facts are read ahead of what is decided on them, and moved to the log in the transaction of the decision.
-- A run's oldest facts are found by its own number: neither the backlog nor other runs make that longer.
ALTER TABLE store.inbox DROP CONSTRAINT inbox_pkey;
ALTER TABLE store.inbox ADD CONSTRAINT inbox_pkey PRIMARY KEY (run_id, id);

-- Tables of facts are empty at one moment and long at the next, so no statistics say how to read them: both functions
-- always go by the primary keys. `lock_timeout`: rows that the session of a stalled driver holds are not waited for.
CREATE FUNCTION store.facts_waiting(run bigint, behind bigint, besides bigint[], at_most int)
RETURNS TABLE (id bigint, producer_key text, body text, known boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  SELECT i.id, i.producer_key, i.body::text,
    (SELECT true FROM store.handled h WHERE h.run_id = run AND h.producer_key = i.producer_key LIMIT 1) IS NOT NULL
  FROM store.inbox i WHERE i.run_id = run AND i.id > behind AND i.id <> ALL (besides)
  ORDER BY i.id LIMIT at_most;
END $$;

CREATE FUNCTION store.move_facts(run bigint, ids bigint[], seqs bigint[], moment timestamptz) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET lock_timeout = '200ms' AS $$
DECLARE moved bigint;
BEGIN
  IF cardinality(ids) = 0 THEN
    RETURN;
  END IF;
  WITH taken AS (
    DELETE FROM store.inbox i USING unnest(ids, seqs) AS wanted(id, seq)
    WHERE i.run_id = run AND i.id = wanted.id RETURNING wanted.seq, i.producer_key, i.body
  ), remembered AS (
    INSERT INTO store.handled (run_id, producer_key, seq) SELECT run, t.producer_key, t.seq FROM taken t
  ), logged AS (
    INSERT INTO store.event (run_id, seq, kind, body, at)
    SELECT run, t.seq, t.body ->> 'kind', t.body, moment FROM taken t RETURNING 1
  )
  SELECT count(*) INTO moved FROM logged;
  PERFORM store.insist(moved = cardinality(ids), 'facts were taken by somebody else');
END $$;

-- Ends the transaction of whoever is not the run's driver any more, also when it does not wait for answers.
CREATE FUNCTION store.insist(holds boolean, otherwise text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF holds IS NOT TRUE THEN
    RAISE EXCEPTION '%', otherwise USING ERRCODE = 'FX001';
  END IF;
END $$;
