-- How jobs have ended, by what they were about: of each the last success, the last failure, and the last few.
CREATE TABLE task_runs (
    id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant      TEXT COLLATE "C" NOT NULL,
    type        TEXT COLLATE "C" NOT NULL,
    subject     TEXT COLLATE "C" NOT NULL,
    context     TEXT COLLATE "C" NOT NULL,
    outcome     TEXT    NOT NULL,
    job_id      TEXT    NOT NULL,
    workflow_id TEXT,
    finished_at BIGINT NOT NULL,
    duration    BIGINT NOT NULL,
    waited      BIGINT NOT NULL,
    attempts    BIGINT NOT NULL,
    result      BYTEA,
    error       BYTEA,
    inputs      BYTEA                -- the hash of what it was given, if it is to be compared
);
CREATE INDEX task_runs_task ON task_runs (tenant, type, subject, context, id);
CREATE INDEX task_runs_finished ON task_runs (finished_at);

-- And how often, of all that there were.
CREATE TABLE task_statistics (
    tenant          TEXT COLLATE "C" NOT NULL,
    type            TEXT COLLATE "C" NOT NULL,
    subject         TEXT COLLATE "C" NOT NULL,
    context         TEXT COLLATE "C" NOT NULL,
    successes       BIGINT NOT NULL,
    failures        BIGINT NOT NULL,
    errors          BIGINT NOT NULL,
    skipped         BIGINT NOT NULL,
    ran             BIGINT NOT NULL,  -- how long all of them together, in microseconds
    shortest        BIGINT,
    longest         BIGINT,
    last_success_at BIGINT,
    last_failure_at BIGINT,
    changed_at      BIGINT NOT NULL,
    PRIMARY KEY (tenant, type, subject, context)
);
CREATE INDEX task_statistics_changed ON task_statistics (changed_at);

-- The hash of what a job was given, from when it was handed out.
CREATE TABLE job_inputs (
    seq    BIGINT PRIMARY KEY,
    inputs BYTEA NOT NULL
);
