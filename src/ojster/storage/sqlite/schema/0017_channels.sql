-- Through what people, and other programs, are told what jobs want them to be told; as JSON.
CREATE TABLE channels (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;
