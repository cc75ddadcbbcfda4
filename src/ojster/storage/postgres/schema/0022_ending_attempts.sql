-- Attempts of workflow steps that the server ended while their worker may still run them: until the worker confirms
-- the end, or the lease is over. Only then does the workflow go on.
CREATE TABLE ending_attempts (
    seq       BIGINT PRIMARY KEY,
    worker_id TEXT COLLATE "C",
    until     BIGINT NOT NULL
);
CREATE INDEX ending_attempts_until ON ending_attempts (until);
CREATE INDEX ending_attempts_worker ON ending_attempts (worker_id);
