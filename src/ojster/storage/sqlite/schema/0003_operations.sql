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

-- Limits on jobs that share a key, or (/queue/NAME) a queue: what is allowed, and how far it is used.
ALTER TABLE jobs ADD COLUMN limit_key TEXT;

CREATE TABLE rate_limits (
    key               TEXT PRIMARY KEY,
    queues            TEXT NOT NULL,     -- where such jobs have been: a JSON array
    concurrency       INTEGER,
    rate_limit        INTEGER,
    rate_period       INTEGER,
    throttle_limit    INTEGER,
    throttle_period   INTEGER,
    on_limit          TEXT NOT NULL,
    override          BLOB,             -- what an operator has put in the place of these, as JSON
    override_until    INTEGER,
    window_started_at INTEGER NOT NULL DEFAULT 0,
    window_used       INTEGER NOT NULL DEFAULT 0,
    next_start_at     INTEGER NOT NULL DEFAULT 0,
    blocked_until     INTEGER NOT NULL DEFAULT 0,
    opens_at          INTEGER,               -- when there is room again, if there is none now
    exceeded          TEXT               -- what there was no room for the last time
) STRICT, WITHOUT ROWID;

CREATE INDEX rate_limits_opens ON rate_limits (opens_at) WHERE opens_at IS NOT NULL;

INSERT INTO rate_limits (key, queues, rate_limit, rate_period, on_limit)
    SELECT '/queue/' || name, '["' || name || '"]', max_per_second, 1000000, 'wait' FROM queues
    WHERE max_per_second IS NOT NULL;
ALTER TABLE queues DROP COLUMN max_per_second;
ALTER TABLE queues DROP COLUMN window_started_at;
ALTER TABLE queues DROP COLUMN window_used;

-- Jobs with a limit stand in an index of their own, so that a claim never reads past those that must wait.
DROP INDEX jobs_available;
CREATE INDEX jobs_available ON jobs (queue, priority DESC, seq) WHERE state = 'available' AND limit_key IS NULL;
CREATE INDEX jobs_limited ON jobs (queue, limit_key, priority DESC, seq)
    WHERE state = 'available' AND limit_key IS NOT NULL;
CREATE INDEX jobs_limit ON jobs (limit_key, state) WHERE limit_key IS NOT NULL AND finished_at IS NULL;

-- How many jobs have waited how long before they started, in the buckets of transaction.WAIT_BUCKETS_US.
ALTER TABLE queue_minutes ADD COLUMN waits_0 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_1 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_2 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_3 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_4 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_5 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_6 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_7 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_8 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_9 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_10 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_11 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_12 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_13 INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_14 INTEGER NOT NULL DEFAULT 0;

-- The same of each hour, when its minutes are forgotten.
CREATE TABLE queue_hours (
    queue TEXT NOT NULL,
    hour INTEGER NOT NULL,       -- hours since the epoch
    enqueued INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    waited INTEGER NOT NULL,
    ran INTEGER NOT NULL,
    waits_0 INTEGER NOT NULL,
    waits_1 INTEGER NOT NULL,
    waits_2 INTEGER NOT NULL,
    waits_3 INTEGER NOT NULL,
    waits_4 INTEGER NOT NULL,
    waits_5 INTEGER NOT NULL,
    waits_6 INTEGER NOT NULL,
    waits_7 INTEGER NOT NULL,
    waits_8 INTEGER NOT NULL,
    waits_9 INTEGER NOT NULL,
    waits_10 INTEGER NOT NULL,
    waits_11 INTEGER NOT NULL,
    waits_12 INTEGER NOT NULL,
    waits_13 INTEGER NOT NULL,
    waits_14 INTEGER NOT NULL,
    PRIMARY KEY (queue, hour)
) STRICT, WITHOUT ROWID;

-- What an operator has set for a queue (a JSON object), and for the whole system.
ALTER TABLE queues ADD COLUMN config BLOB;

CREATE TABLE system (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Schemas of the arguments of job types, by version.
CREATE TABLE schemas (
    type       TEXT NOT NULL,
    major      INTEGER NOT NULL,
    minor      INTEGER NOT NULL,
    patch      INTEGER NOT NULL,
    name       TEXT NOT NULL,       -- the version, as it was given
    mode       TEXT NOT NULL,       -- strict, warn or off
    body       BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (type, major, minor, patch)
) STRICT, WITHOUT ROWID;

-- Who wants to be told of events; a JSON object for each.
CREATE TABLE webhooks (
    id   TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Workers that share queues; a JSON object for each. A worker says of which pool it is.
CREATE TABLE pools (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE workers ADD COLUMN pool TEXT;
