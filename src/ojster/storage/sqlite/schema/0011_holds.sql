-- What becomes of a job that waits for somebody to resume it (ojster.workflows.suspensions), and what it was resumed with.
ALTER TABLE jobs ADD COLUMN hold TEXT;

CREATE TABLE resumptions (
    seq  INTEGER PRIMARY KEY,          -- the job's
    data BLOB NOT NULL               -- any JSON value
) STRICT;

-- What a workflow was started with from its definition, for those that are run again as a whole, and which attempt it is.
ALTER TABLE workflows ADD COLUMN start BLOB;
ALTER TABLE workflows ADD COLUMN locks TEXT;
ALTER TABLE workflows ADD COLUMN on_lost_worker TEXT;
ALTER TABLE workflows ADD COLUMN attempt INTEGER NOT NULL DEFAULT 1;
ALTER TABLE workflows ADD COLUMN previous_attempt TEXT;
ALTER TABLE workflows ADD COLUMN next_attempt TEXT;

CREATE INDEX workflows_locks ON workflows (tenant) WHERE locks IS NOT NULL AND finished_at IS NULL;

-- What the tasks of a workflow share. What was deleted stays, without a value, so that its version is not used again.
CREATE TABLE workflow_properties (
    workflow INTEGER NOT NULL,
    name     TEXT NOT NULL,
    value    BLOB,
    version  INTEGER NOT NULL,
    PRIMARY KEY (workflow, name)
) STRICT;

-- What jobs tell of themselves while they run, and others tell of workflows.
CREATE TABLE notes (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    workflow INTEGER,
    seq      INTEGER,                  -- the job's
    at       INTEGER NOT NULL,
    note     BLOB NOT NULL           -- any JSON value
) STRICT;

CREATE INDEX notes_workflow ON notes (workflow, number) WHERE workflow IS NOT NULL;
CREATE INDEX notes_job ON notes (seq, number) WHERE seq IS NOT NULL;
