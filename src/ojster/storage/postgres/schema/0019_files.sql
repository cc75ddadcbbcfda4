-- Files of each workspace by their hash. What is in them is in the file store, in pieces called ID/PIECE.
CREATE TABLE files (
    id           TEXT COLLATE "C" PRIMARY KEY,
    tenant       TEXT COLLATE "C" NOT NULL,
    state        TEXT    NOT NULL,   -- uploading, complete, damaged, or doomed: its pieces are to be deleted
    sha256       TEXT COLLATE "C",
    size         BIGINT,             -- how many bytes it has, if that is known
    stored       BIGINT NOT NULL,   -- how many of them have come
    content_type TEXT    NOT NULL,
    filename     TEXT,
    created_at   BIGINT NOT NULL,
    created_by   TEXT,
    touched_at   BIGINT NOT NULL    -- when it was last of interest: what nobody refers to goes a while after that
);
CREATE UNIQUE INDEX files_hash ON files (tenant, sha256) WHERE state = 'complete';
CREATE INDEX files_touched ON files (touched_at);

CREATE TABLE file_pieces (
    file     TEXT COLLATE "C" NOT NULL,
    start    BIGINT NOT NULL,
    size     BIGINT NOT NULL,
    sha256   BYTEA    NOT NULL,
    piece    TEXT    NOT NULL,
    PRIMARY KEY (file, start)
);

-- An item may be an artifact: a file.
ALTER TABLE collection_items ADD COLUMN file_id TEXT COLLATE "C";
ALTER TABLE collection_items ADD COLUMN file BYTEA;
CREATE INDEX collection_items_file ON collection_items (file_id) WHERE removed_at IS NULL AND file_id IS NOT NULL;
