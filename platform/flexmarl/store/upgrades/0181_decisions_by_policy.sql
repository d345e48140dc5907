-- Decisions of one policy, and cuts by time, are read newest first from an index each.
CREATE INDEX command_policy ON store.command (run_id, (coalesce(body ->> 'policy', body #>> '{ref,policy}')), no)
  WHERE coalesce(body ->> 'policy', body #>> '{ref,policy}') IS NOT NULL;
CREATE INDEX ruling_policy ON store.ruling (run_id, policy, seq, ord) WHERE policy <> '';
CREATE INDEX micro_batch_cut ON store.micro_batch (run_id, cut_at, policy, no);

-- What moved a policy's data is read page by page (store/reads/transitions.py), not from one view over a whole run.
DROP VIEW store.transition;
