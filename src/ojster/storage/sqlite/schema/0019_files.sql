-- Files of each workspace by their hash. What is in them is in the file store, in pieces called ID/PIECE.
CREATE TABLE files (
    id           TEXT    PRIMARY KEY,
    tenant       TEXT    NOT NULL,
    state        TEXT    NOT NULL,   -- uploading, complete, damaged, or doomed: its pieces are to be deleted
    sha256       TEXT,
    size         INTEGER,            -- how many bytes it has, if that is known
    stored       INTEGER NOT NULL,   -- how many of them have come
    content_type TEXT    NOT NULL,
    filename     TEXT,
    created_at   INTEGER NOT NULL,
    created_by   TEXT,
    touched_at   INTEGER NOT NULL    -- when it was last of interest: what nobody refers to goes a while after that
) STRICT;
CREATE UNIQUE INDEX files_hash ON files (tenant, sha256) WHERE state = 'complete';
CREATE INDEX files_touched ON files (touched_at);

CREATE TABLE file_pieces (
    file     TEXT    NOT NULL,
    start    INTEGER NOT NULL,
    size     INTEGER NOT NULL,
    sha256   BLOB    NOT NULL,
    piece    TEXT    NOT NULL,
    PRIMARY KEY (file, start)
) STRICT, WITHOUT ROWID;

-- An item may be an artifact: a file.
ALTER TABLE collection_items ADD COLUMN file_id TEXT;
ALTER TABLE collection_items ADD COLUMN file BLOB;
CREATE INDEX collection_items_file ON collection_items (file_id) WHERE removed_at IS NULL AND file_id IS NOT NULL;
