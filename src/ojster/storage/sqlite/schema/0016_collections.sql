-- Named collections; those of workflows have no row here, and are called /workflow/SEQ in their items.
CREATE TABLE collections (
    name        TEXT PRIMARY KEY,
    description TEXT,
    created_at  INTEGER NOT NULL,
    created_by  TEXT
) STRICT;

-- What is in collections, and was: one item of a name that was not removed.
CREATE TABLE collection_items (
    id         INTEGER PRIMARY KEY,
    collection TEXT NOT NULL,
    name       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    category   TEXT,
    data       BLOB NOT NULL,
    job_id     TEXT,  -- which job has put it there, or is to
    workflow   INTEGER,  -- and of which workflow that is, if the collection is not that of the workflow
    created_at INTEGER NOT NULL,
    created_by TEXT,
    removed_at INTEGER,
    removed_by TEXT
) STRICT;
CREATE UNIQUE INDEX collection_items_name ON collection_items (collection, name) WHERE removed_at IS NULL;
CREATE INDEX collection_items_removed ON collection_items (collection, id) WHERE removed_at IS NOT NULL;
CREATE INDEX collection_items_job ON collection_items (job_id) WHERE removed_at IS NULL AND job_id IS NOT NULL;
CREATE INDEX collection_items_workflow ON collection_items (workflow) WHERE removed_at IS NULL AND workflow IS NOT NULL;
