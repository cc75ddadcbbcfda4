-- What operators say of workers, present or not, as JSON.
CREATE TABLE worker_rules (
    id      TEXT PRIMARY KEY,
    body    BLOB NOT NULL,
    enabled INTEGER NOT NULL -- 1, or 0: it is given nothing
) STRICT, WITHOUT ROWID;
