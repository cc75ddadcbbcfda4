-- What operators say of workers, present or not, as JSON.
CREATE TABLE worker_rules (
    id      TEXT COLLATE "C" PRIMARY KEY,
    body    BYTEA NOT NULL,
    enabled BIGINT NOT NULL -- 1, or 0: it is given nothing
);
