-- How many bytes the files of a workspace take in the file store, uploads and doomed files among them.
CREATE TABLE file_usage (
    tenant TEXT COLLATE "C" PRIMARY KEY,
    bytes  BIGINT NOT NULL
);
INSERT INTO file_usage (tenant, bytes) SELECT tenant, sum(stored) FROM files GROUP BY tenant;
