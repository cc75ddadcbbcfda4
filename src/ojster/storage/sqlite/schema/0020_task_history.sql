-- How jobs have ended, by what they were about: of each the last success, the last failure, and the last few.
CREATE TABLE task_runs (
    id          INTEGER PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    subject     TEXT    NOT NULL,
    context     TEXT    NOT NULL,
    outcome     TEXT    NOT NULL,
    job_id      TEXT    NOT NULL,
    workflow_id TEXT,
    finished_at INTEGER NOT NULL,
    duration    INTEGER NOT NULL,
    waited      INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    result      BLOB,
    error       BLOB,
    inputs      BLOB                -- the hash of what it was given, if it is to be compared
) STRICT;
CREATE INDEX task_runs_task ON task_runs (tenant, type, subject, context, id);
CREATE INDEX task_runs_finished ON task_runs (finished_at);

-- And how often, of all that there were.
CREATE TABLE task_statistics (
    tenant          TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    subject         TEXT    NOT NULL,
    context         TEXT    NOT NULL,
    successes       INTEGER NOT NULL,
    failures        INTEGER NOT NULL,
    errors          INTEGER NOT NULL,
    skipped         INTEGER NOT NULL,
    ran             INTEGER NOT NULL,  -- how long all of them together, in microseconds
    shortest        INTEGER,
    longest         INTEGER,
    last_success_at INTEGER,
    last_failure_at INTEGER,
    changed_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant, type, subject, context)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_statistics_changed ON task_statistics (changed_at);

-- The hash of what a job was given, from when it was handed out.
CREATE TABLE job_inputs (
    seq    INTEGER PRIMARY KEY,
    inputs BLOB NOT NULL
) STRICT;
