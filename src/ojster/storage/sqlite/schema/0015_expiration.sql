-- Finished jobs that say themselves how long they are to be kept have that in due_at, and an index of their own (jobs_due).
DROP INDEX jobs_finished;
CREATE INDEX jobs_finished ON jobs (state, dead, finished_at)
    WHERE finished_at IS NOT NULL AND node IS NULL AND due_at IS NULL;

ALTER TABLE workflows ADD COLUMN expiration_delay INTEGER; -- how long it is to be kept once it is finished
ALTER TABLE workflows ADD COLUMN kept_until INTEGER;
CREATE INDEX workflows_kept ON workflows (kept_until) WHERE kept_until IS NOT NULL;
