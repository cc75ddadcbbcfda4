-- What callers show to be let in, as JSON; of their secrets there are only hashes.
CREATE TABLE tokens (
    id           TEXT COLLATE "C" PRIMARY KEY,
    body         BYTEA NOT NULL,
    last_used_at BIGINT
);
