-- What becomes of a job that waits for somebody to resume it (ojster.workflows.suspensions), and what it was resumed with.
ALTER TABLE jobs ADD COLUMN hold TEXT COLLATE "C";

CREATE TABLE resumptions (
    seq  BIGINT PRIMARY KEY,          -- the job's
    data BYTEA NOT NULL               -- any JSON value
);

-- What a workflow was started with from its definition, for those that are run again as a whole, and which attempt it is.
ALTER TABLE workflows ADD COLUMN start BYTEA;
ALTER TABLE workflows ADD COLUMN locks TEXT COLLATE "C";
ALTER TABLE workflows ADD COLUMN on_lost_worker TEXT COLLATE "C";
ALTER TABLE workflows ADD COLUMN attempt BIGINT NOT NULL DEFAULT 1;
ALTER TABLE workflows ADD COLUMN previous_attempt TEXT COLLATE "C";
ALTER TABLE workflows ADD COLUMN next_attempt TEXT COLLATE "C";

CREATE INDEX workflows_locks ON workflows (tenant) WHERE locks IS NOT NULL AND finished_at IS NULL;

-- What the tasks of a workflow share. What was deleted stays, without a value, so that its version is not used again.
CREATE TABLE workflow_properties (
    workflow BIGINT NOT NULL,
    name     TEXT COLLATE "C" NOT NULL,
    value    BYTEA,
    version  BIGINT NOT NULL,
    PRIMARY KEY (workflow, name)
);

-- What jobs tell of themselves while they run, and others tell of workflows.
CREATE TABLE notes (
    number   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workflow BIGINT,
    seq      BIGINT,                  -- the job's
    at       BIGINT NOT NULL,
    note     BYTEA NOT NULL           -- any JSON value
);

CREATE INDEX notes_workflow ON notes (workflow, number) WHERE workflow IS NOT NULL;
CREATE INDEX notes_job ON notes (seq, number) WHERE seq IS NOT NULL;
