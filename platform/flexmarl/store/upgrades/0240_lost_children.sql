-- Why children of a lease were lost is read beside its engine's state.
CREATE INDEX event_lost ON store.event (run_id, ((body ->> 'lease_id')::bigint), seq) WHERE kind = 'child_lost';
