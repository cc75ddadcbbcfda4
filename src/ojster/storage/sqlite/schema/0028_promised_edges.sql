-- Whether an edge follows from an item that the source promised and the target looks up.
ALTER TABLE node_edges ADD COLUMN promised INTEGER NOT NULL DEFAULT 0;
CREATE INDEX node_edges_promised ON node_edges (target) WHERE promised = 1;
