-- Large values that many jobs of a workflow contain are stored once (ojster/core/shared_value.py). An envelope that
-- lacks one names it, and the place where it belongs.
CREATE TABLE shared_values (
    digest   BYTEA   NOT NULL PRIMARY KEY,
    workflow BIGINT  NOT NULL,
    value    BYTEA   NOT NULL
);
CREATE INDEX shared_values_workflow ON shared_values (workflow);
ALTER TABLE payloads ADD COLUMN shared BYTEA;
ALTER TABLE payloads ADD COLUMN shared_at BIGINT;
-- A process of the former version, which would not put envelopes together, fails instead of handing out what is left.
ALTER TABLE payloads RENAME COLUMN envelope TO stored;
