-- Named collections; those of workflows have no row here, and are called /workflow/SEQ in their items.
CREATE TABLE collections (
    name        TEXT COLLATE "C" PRIMARY KEY,
    description TEXT,
    created_at  BIGINT NOT NULL,
    created_by  TEXT
);

-- What is in collections, and was: one item of a name that was not removed.
CREATE TABLE collection_items (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    collection TEXT COLLATE "C" NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    kind       TEXT NOT NULL,
    category   TEXT,
    data       BYTEA NOT NULL,
    job_id     UUID,  -- which job has put it there, or is to
    workflow   BIGINT,  -- and of which workflow that is, if the collection is not that of the workflow
    created_at BIGINT NOT NULL,
    created_by TEXT,
    removed_at BIGINT,
    removed_by TEXT
);
CREATE UNIQUE INDEX collection_items_name ON collection_items (collection, name) WHERE removed_at IS NULL;
CREATE INDEX collection_items_removed ON collection_items (collection, id) WHERE removed_at IS NOT NULL;
CREATE INDEX collection_items_job ON collection_items (job_id) WHERE removed_at IS NULL AND job_id IS NOT NULL;
CREATE INDEX collection_items_workflow ON collection_items (workflow) WHERE removed_at IS NULL AND workflow IS NOT NULL;
