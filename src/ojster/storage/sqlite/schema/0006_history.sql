-- What has happened to jobs that does not show in their rows: failures, retries, cancellations, interventions. What happens
-- to every job is not written again.
CREATE TABLE job_history (
    id   INTEGER PRIMARY KEY,
    seq  INTEGER NOT NULL,            -- the job's
    at   INTEGER NOT NULL,
    type TEXT    NOT NULL,
    data BLOB    NOT NULL             -- a JSON object
) STRICT;

CREATE INDEX job_history_seq ON job_history (seq, id);
