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

-- Limits on jobs that share a key, or (/queue/NAME) a queue: what is allowed, and how far it is used.
ALTER TABLE jobs ADD COLUMN limit_key TEXT COLLATE "C";

CREATE TABLE rate_limits (
    key               TEXT COLLATE "C" PRIMARY KEY,
    queues            TEXT COLLATE "C" NOT NULL,     -- where such jobs have been: a JSON array
    concurrency       BIGINT,
    rate_limit        BIGINT,
    rate_period       BIGINT,
    throttle_limit    BIGINT,
    throttle_period   BIGINT,
    on_limit          TEXT COLLATE "C" NOT NULL,
    override          BYTEA,             -- what an operator has put in the place of these, as JSON
    override_until    BIGINT,
    window_started_at BIGINT NOT NULL DEFAULT 0,
    window_used       BIGINT NOT NULL DEFAULT 0,
    next_start_at     BIGINT NOT NULL DEFAULT 0,
    blocked_until     BIGINT NOT NULL DEFAULT 0,
    opens_at          BIGINT,               -- when there is room again, if there is none now
    exceeded          TEXT COLLATE "C"               -- what there was no room for the last time
) WITH (fillfactor = 50);

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
ALTER TABLE queue_minutes ADD COLUMN waits_0 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_1 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_2 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_3 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_4 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_5 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_6 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_7 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_8 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_9 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_10 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_11 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_12 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_13 BIGINT NOT NULL DEFAULT 0;
ALTER TABLE queue_minutes ADD COLUMN waits_14 BIGINT NOT NULL DEFAULT 0;

-- The same of each hour, when its minutes are forgotten.
CREATE TABLE queue_hours (
    queue TEXT COLLATE "C" NOT NULL,
    hour BIGINT NOT NULL,       -- hours since the epoch
    enqueued BIGINT NOT NULL,
    completed BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    waited BIGINT NOT NULL,
    ran BIGINT NOT NULL,
    waits_0 BIGINT NOT NULL,
    waits_1 BIGINT NOT NULL,
    waits_2 BIGINT NOT NULL,
    waits_3 BIGINT NOT NULL,
    waits_4 BIGINT NOT NULL,
    waits_5 BIGINT NOT NULL,
    waits_6 BIGINT NOT NULL,
    waits_7 BIGINT NOT NULL,
    waits_8 BIGINT NOT NULL,
    waits_9 BIGINT NOT NULL,
    waits_10 BIGINT NOT NULL,
    waits_11 BIGINT NOT NULL,
    waits_12 BIGINT NOT NULL,
    waits_13 BIGINT NOT NULL,
    waits_14 BIGINT NOT NULL,
    PRIMARY KEY (queue, hour)
);

-- What an operator has set for a queue (a JSON object), and for the whole system.
ALTER TABLE queues ADD COLUMN config BYTEA;

CREATE TABLE system (
    name  TEXT COLLATE "C" PRIMARY KEY,
    value BYTEA NOT NULL
);

-- Schemas of the arguments of job types, by version.
CREATE TABLE schemas (
    type       TEXT COLLATE "C" NOT NULL,
    major      BIGINT NOT NULL,
    minor      BIGINT NOT NULL,
    patch      BIGINT NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,       -- the version, as it was given
    mode       TEXT COLLATE "C" NOT NULL,       -- strict, warn or off
    body       BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (type, major, minor, patch)
);

-- Who wants to be told of events; a JSON object for each.
CREATE TABLE webhooks (
    id   TEXT COLLATE "C" PRIMARY KEY,
    body BYTEA NOT NULL
);

-- Workers that share queues; a JSON object for each. A worker says of which pool it is.
CREATE TABLE pools (
    name TEXT COLLATE "C" PRIMARY KEY,
    body BYTEA NOT NULL
);

ALTER TABLE workers ADD COLUMN pool TEXT COLLATE "C";
