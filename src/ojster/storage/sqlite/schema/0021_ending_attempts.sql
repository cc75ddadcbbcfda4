-- Attempts of workflow steps that the server ended while their worker may still run them: until the worker confirms
-- the end, or the lease is over. Only then does the workflow go on.
CREATE TABLE ending_attempts (
    seq       INTEGER PRIMARY KEY,
    worker_id TEXT,
    until     INTEGER NOT NULL
) STRICT;
CREATE INDEX ending_attempts_until ON ending_attempts (until);
CREATE INDEX ending_attempts_worker ON ending_attempts (worker_id);
