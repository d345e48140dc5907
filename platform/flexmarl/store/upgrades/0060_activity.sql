-- What a run asked of its workers in a window of time, and when people held it: read by the pipeline and bubble views.
CREATE INDEX command_made ON store.command (run_id, created_at);
CREATE INDEX event_verbs ON store.event (run_id, seq) WHERE kind = 'run_verb';
