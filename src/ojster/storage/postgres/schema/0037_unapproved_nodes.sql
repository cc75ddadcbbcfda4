-- Nodes that wait for their approval, by what never changes while a node runs: with the state in the index, PostgreSQL
-- would change every index of the table with every change of a state.
DROP INDEX nodes_blocked;
CREATE INDEX nodes_unapproved ON nodes (id) WHERE manual = 1 AND approved = 0;
