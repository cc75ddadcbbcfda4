-- The type of the error of a job's last failed attempt, so that operators can choose jobs by it.
ALTER TABLE jobs ADD COLUMN error_type TEXT COLLATE "C";

-- What was answered to requests that a client may send again, under the key that it gave them.
CREATE TABLE idempotency_keys (
    operation   TEXT   COLLATE "C" NOT NULL,
    key         TEXT   COLLATE "C" NOT NULL,
    fingerprint TEXT   COLLATE "C" NOT NULL, -- of the request
    status      BIGINT NOT NULL,             -- of the answer
    body        BYTEA  NOT NULL,
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (operation, key)
);

CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

-- What the handlers of jobs have saved of their state; the number of the last one stands with the job, 0 if there is none.
ALTER TABLE jobs ADD COLUMN checkpoint_number BIGINT NOT NULL DEFAULT 0;

CREATE TABLE checkpoints (
    seq        BIGINT PRIMARY KEY,
    state      BYTEA  NOT NULL,
    created_at BIGINT NOT NULL
);
