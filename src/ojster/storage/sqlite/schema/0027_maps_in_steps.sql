-- Elements of maps whose nodes do not exist yet. A map that was stopped keeps its own, parked, for a retry.
CREATE TABLE map_elements (
    node INTEGER NOT NULL,
    start INTEGER NOT NULL,
    number INTEGER NOT NULL,
    parked INTEGER NOT NULL DEFAULT 0,
    elements BLOB NOT NULL,
    PRIMARY KEY (node, start)
) STRICT, WITHOUT ROWID;

CREATE INDEX map_elements_next ON map_elements (start, node) WHERE parked = 0;

-- The bytes of jobs into which references were resolved.
ALTER TABLE workflows ADD COLUMN resolved_bytes INTEGER NOT NULL DEFAULT 0;
