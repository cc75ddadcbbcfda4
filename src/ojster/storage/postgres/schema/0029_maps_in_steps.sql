-- Elements of maps whose nodes do not exist yet. A map that was stopped keeps its own, parked, for a retry.
CREATE TABLE map_elements (
    node BIGINT NOT NULL,
    start BIGINT NOT NULL,
    number BIGINT NOT NULL,
    parked SMALLINT NOT NULL DEFAULT 0,
    elements BYTEA NOT NULL,
    PRIMARY KEY (node, start)
);

CREATE INDEX map_elements_next ON map_elements (start, node) WHERE parked = 0;

-- The bytes of jobs into which references were resolved.
ALTER TABLE workflows ADD COLUMN resolved_bytes BIGINT NOT NULL DEFAULT 0;
