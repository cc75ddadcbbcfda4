-- Jobs: the small, hot row. What never changes stands in payloads.
CREATE TABLE jobs (
    seq           INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL,
    type          TEXT    NOT NULL,
    queue         TEXT    NOT NULL,
    state         TEXT    NOT NULL,
    priority      INTEGER NOT NULL,
    attempt       INTEGER NOT NULL DEFAULT 0,
    max_attempts  INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    enqueued_at   INTEGER,
    started_at    INTEGER,
    finished_at   INTEGER,
    expires_at    INTEGER,
    due_at        INTEGER,            -- when something is to happen to the job; what, depends on its state
    timeout       INTEGER,
    lease         INTEGER,
    retry_delay   INTEGER,
    worker_id     TEXT,
    unique_key    TEXT,
    cron_name     TEXT,
    exclusive_key TEXT,               -- jobs that share it never run at the same time
    dead          INTEGER NOT NULL DEFAULT 0,
    progress      BLOB,               -- a JSON object, as the handler last reported it
    result        BLOB,
    errors        BLOB                -- a JSON array, one object for each failed attempt
) STRICT;

CREATE TABLE payloads (
    seq      INTEGER PRIMARY KEY,
    envelope BLOB NOT NULL
) STRICT;

CREATE UNIQUE INDEX jobs_id ON jobs (id);
CREATE INDEX jobs_available ON jobs (queue, priority DESC, seq) WHERE state = 'available';
CREATE INDEX jobs_due ON jobs (state, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX jobs_finished ON jobs (state, dead, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_unique ON jobs (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX jobs_cron ON jobs (cron_name) WHERE cron_name IS NOT NULL AND finished_at IS NULL;
CREATE INDEX jobs_exclusive ON jobs (exclusive_key) WHERE exclusive_key IS NOT NULL AND state = 'active';

CREATE TABLE queues (
    name              TEXT PRIMARY KEY,
    created_at        INTEGER NOT NULL,
    paused_at         INTEGER,
    max_per_second    INTEGER,
    window_started_at INTEGER NOT NULL DEFAULT 0,
    window_used       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- How many jobs of a queue are in which state, kept by every transaction that changes it.
CREATE TABLE job_counts (
    queue TEXT    NOT NULL,
    state TEXT    NOT NULL,
    jobs  INTEGER NOT NULL,
    PRIMARY KEY (queue, state)
) STRICT, WITHOUT ROWID;

-- What each minute of work in a queue amounted to; durations are sums, in microseconds.
CREATE TABLE queue_minutes (
    queue     TEXT    NOT NULL,
    minute    INTEGER NOT NULL,       -- minutes since the epoch
    enqueued  INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    waited    INTEGER NOT NULL,
    ran       INTEGER NOT NULL,
    PRIMARY KEY (queue, minute)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    id           TEXT PRIMARY KEY,
    state        TEXT    NOT NULL,    -- what the worker says of itself: running, quiet or terminate
    directive    TEXT,                -- what an operator wants of it
    hostname     TEXT,
    pid          INTEGER,
    queues       TEXT    NOT NULL,    -- a JSON array
    labels       TEXT    NOT NULL,    -- a JSON array
    concurrency  INTEGER,
    active_jobs  INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE crons (
    name           TEXT PRIMARY KEY,
    expression     TEXT    NOT NULL,
    timezone       TEXT    NOT NULL,
    overlap_policy TEXT    NOT NULL,
    enabled        INTEGER NOT NULL,
    description    TEXT,
    template       BLOB    NOT NULL,  -- the enqueue request of each job, as JSON
    created_at     INTEGER NOT NULL,
    last_run_at    INTEGER,
    next_run_at    INTEGER,
    run_count      INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE INDEX crons_next ON crons (next_run_at) WHERE next_run_at IS NOT NULL;
