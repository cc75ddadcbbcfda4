-- Workflows that are started often; every change is a version of its own. The workflows themselves are snapshots.
CREATE TABLE definitions (
    name          TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    body          BLOB    NOT NULL, -- the members of a workflow that it stands for, as JSON
    params_schema BLOB,
    hashes        BLOB    NOT NULL, -- SHA-256 of each branch, as JSON
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) STRICT;

ALTER TABLE workflows ADD COLUMN definition TEXT;
ALTER TABLE workflows ADD COLUMN definition_version INTEGER;
ALTER TABLE workflows ADD COLUMN target TEXT;
-- What no other unfinished workflow may have: its definition, target and parameters, as a hash.
ALTER TABLE workflows ADD COLUMN target_key TEXT;

CREATE INDEX workflows_definition ON workflows (definition) WHERE definition IS NOT NULL AND finished_at IS NULL;
CREATE UNIQUE INDEX workflows_target ON workflows (target_key) WHERE target_key IS NOT NULL AND finished_at IS NULL;
