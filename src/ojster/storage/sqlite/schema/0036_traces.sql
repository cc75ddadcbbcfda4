-- The trace that a job belongs to, for its events. Jobs from before have only the bit TRACED in their reacts.
ALTER TABLE jobs ADD COLUMN trace_id TEXT;
