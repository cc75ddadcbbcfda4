-- A job of a workflow knows its node, and the job that took its place when the workflow was retried.
ALTER TABLE jobs ADD COLUMN node INTEGER;
ALTER TABLE jobs ADD COLUMN superseded_by TEXT;

CREATE INDEX jobs_node ON jobs (node) WHERE node IS NOT NULL;

-- Jobs of workflows are not forgotten one by one, so the index from which finished jobs are forgotten leaves them out.
DROP INDEX jobs_finished;
CREATE INDEX jobs_finished ON jobs (state, dead, finished_at) WHERE finished_at IS NOT NULL AND node IS NULL;
CREATE INDEX jobs_dead ON jobs (dead, seq) WHERE dead = 1;

CREATE TABLE workflows (
    seq             INTEGER PRIMARY KEY,
    id              TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    name            TEXT,
    state           TEXT    NOT NULL,
    version         INTEGER NOT NULL DEFAULT 0,   -- grows with every change
    created_at      INTEGER NOT NULL,
    started_at      INTEGER,
    cancelled_at    INTEGER,
    finished_at     INTEGER,          -- when nothing of it ran any more
    due_at          INTEGER,          -- when something is to happen to it; what, depends on its state
    scheduled_at    INTEGER,
    expires_at      INTEGER,
    timeout         INTEGER,
    held_at         INTEGER,
    nodes           INTEGER NOT NULL, -- how many nodes it has had: the number of the next one
    jobs            INTEGER NOT NULL,
    completed       INTEGER NOT NULL DEFAULT 0,
    failed          INTEGER NOT NULL DEFAULT 0,
    cancelled       INTEGER NOT NULL DEFAULT 0,
    retries         INTEGER NOT NULL DEFAULT 0,
    params          BLOB    NOT NULL,
    metadata        BLOB    NOT NULL,
    error           BLOB              -- why it failed, if no step's failure says so
) STRICT;

CREATE UNIQUE INDEX workflows_id ON workflows (id);
CREATE INDEX workflows_due ON workflows (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX workflows_state ON workflows (state, seq);
CREATE INDEX workflows_finished ON workflows (state, finished_at) WHERE finished_at IS NOT NULL;

-- The nodes of workflows; see model/node.py. Those of a workflow stand together: seq << 20 | number.
CREATE TABLE nodes (
    id               INTEGER PRIMARY KEY,
    parent           INTEGER,
    position         INTEGER NOT NULL,
    kind             TEXT    NOT NULL,
    name             TEXT,
    rule             TEXT    NOT NULL,
    tolerated        INTEGER NOT NULL,
    manual           INTEGER NOT NULL,
    inputs           TEXT,
    source           INTEGER,
    followed         INTEGER NOT NULL,
    state            TEXT    NOT NULL,
    approved         INTEGER NOT NULL,
    verdict          TEXT,
    waiting          INTEGER NOT NULL,
    failed_before    INTEGER NOT NULL,
    cancelled_before INTEGER NOT NULL,
    unmet            INTEGER NOT NULL,
    total            INTEGER NOT NULL,
    unfinished       INTEGER NOT NULL,
    completed        INTEGER NOT NULL,
    failed           INTEGER NOT NULL,
    cancelled        INTEGER NOT NULL,
    broken           INTEGER NOT NULL,
    lost             INTEGER NOT NULL,
    job_id           TEXT,
    result           BLOB,
    error            BLOB,
    started_at       INTEGER,
    finished_at      INTEGER
) STRICT;

CREATE INDEX nodes_parent ON nodes (parent, position) WHERE parent IS NOT NULL;

-- What a node needs when it starts; written once.
CREATE TABLE node_specs (
    id   INTEGER PRIMARY KEY,
    spec BLOB NOT NULL
) STRICT;

CREATE TABLE node_edges (
    source INTEGER NOT NULL,
    target INTEGER NOT NULL,
    PRIMARY KEY (source, target)
) STRICT, WITHOUT ROWID;

CREATE INDEX node_edges_target ON node_edges (target);

-- What people said of nodes that wait for an approval.
CREATE TABLE node_reviews (
    seq    INTEGER PRIMARY KEY,
    node   INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    author TEXT,
    action TEXT,                      -- approve, reject, or nothing
    notes  TEXT
) STRICT;

CREATE INDEX node_reviews_node ON node_reviews (node);
