-- What jobs of a type have unless their request says otherwise, as JSON members of an enqueue request.
CREATE TABLE job_types (
    type TEXT COLLATE "C" PRIMARY KEY,
    defaults BYTEA NOT NULL,
    updated_at BIGINT NOT NULL
);
