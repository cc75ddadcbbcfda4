-- What jobs of a type have unless their request says otherwise, as JSON members of an enqueue request.
CREATE TABLE job_types (
    type TEXT PRIMARY KEY,
    defaults BLOB NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
