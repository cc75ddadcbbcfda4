-- Through what people, and other programs, are told what jobs want them to be told; as JSON.
CREATE TABLE channels (
    name TEXT COLLATE "C" PRIMARY KEY,
    body BYTEA NOT NULL
);
