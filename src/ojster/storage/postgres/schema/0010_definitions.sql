-- Workflows that are started often; every change is a version of its own. The workflows themselves are snapshots.
CREATE TABLE definitions (
    name          TEXT COLLATE "C" NOT NULL,
    version       BIGINT NOT NULL,
    body          BYTEA NOT NULL, -- the members of a workflow that it stands for, as JSON
    params_schema BYTEA,
    hashes        BYTEA NOT NULL, -- SHA-256 of each branch, as JSON
    created_at    BIGINT NOT NULL,
    PRIMARY KEY (name, version)
);

ALTER TABLE workflows ADD COLUMN definition TEXT COLLATE "C";
ALTER TABLE workflows ADD COLUMN definition_version BIGINT;
ALTER TABLE workflows ADD COLUMN target TEXT COLLATE "C";
-- What no other unfinished workflow may have: its definition, target and parameters, as a hash.
ALTER TABLE workflows ADD COLUMN target_key TEXT COLLATE "C";

CREATE INDEX workflows_definition ON workflows (definition) WHERE definition IS NOT NULL AND finished_at IS NULL;
CREATE UNIQUE INDEX workflows_target ON workflows (target_key) WHERE target_key IS NOT NULL AND finished_at IS NULL;
