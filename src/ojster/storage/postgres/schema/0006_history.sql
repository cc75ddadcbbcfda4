-- What has happened to jobs that does not show in their rows: failures, retries, cancellations, interventions. What happens
-- to every job is not written again.
CREATE TABLE job_history (
    id   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq  BIGINT NOT NULL,             -- the job's
    at   BIGINT NOT NULL,
    type TEXT   COLLATE "C" NOT NULL,
    data BYTEA  NOT NULL              -- a JSON object
);

CREATE INDEX job_history_seq ON job_history (seq, id);
