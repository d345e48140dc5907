-- What is gone for good, kept apart from what a retirement under way is about to remove: a run that came to life again
-- meanwhile takes its table back, and what earlier retirements removed must not be missed then.
ALTER TABLE store.retirement
  ADD COLUMN gone_seq     bigint NOT NULL DEFAULT 0,  -- events up to it told of samples that are gone
  ADD COLUMN gone_samples bigint NOT NULL DEFAULT 0;
UPDATE store.retirement SET gone_seq = seq, gone_samples = samples WHERE ended_at IS NOT NULL;
