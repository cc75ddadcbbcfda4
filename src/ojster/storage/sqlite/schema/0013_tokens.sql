-- What callers show to be let in, as JSON; of their secrets there are only hashes.
CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    body         BLOB NOT NULL,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;
