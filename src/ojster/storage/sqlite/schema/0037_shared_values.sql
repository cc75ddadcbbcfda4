-- Large values that many jobs of a workflow contain are stored once (ojster/core/shared_value.py). An envelope that
-- lacks one names it, and the place where it belongs.
CREATE TABLE shared_values (
    digest   BLOB    NOT NULL PRIMARY KEY,
    workflow INTEGER NOT NULL,
    value    BLOB    NOT NULL
) STRICT;
CREATE INDEX shared_values_workflow ON shared_values (workflow);
ALTER TABLE payloads ADD COLUMN shared BLOB;
ALTER TABLE payloads ADD COLUMN shared_at INTEGER;
-- A process of the former version, which would not put envelopes together, fails instead of handing out what is left.
ALTER TABLE payloads RENAME COLUMN envelope TO stored;
