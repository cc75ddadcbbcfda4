-- The type of the error of a job's last failed attempt, so that operators can choose jobs by it.
ALTER TABLE jobs ADD COLUMN error_type TEXT;

-- What was answered to requests that a client may send again, under the key that it gave them.
CREATE TABLE idempotency_keys (
    operation   TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,     -- of the request
    status      INTEGER NOT NULL,     -- of the answer
    body        BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (operation, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

-- What the handlers of jobs have saved of their state; the number of the last one stands with the job, 0 if there is none.
ALTER TABLE jobs ADD COLUMN checkpoint_number INTEGER NOT NULL DEFAULT 0;

CREATE TABLE checkpoints (
    seq        INTEGER PRIMARY KEY,
    state      BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
