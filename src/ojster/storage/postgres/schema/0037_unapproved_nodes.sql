-- Nodes that wait for their approval, by what never changes while a node runs: with the state in the index, PostgreSQL
-- would change every index of the table with every change of a state.
DROP INDEX CONCURRENTLY nodes_blocked;
CREATE INDEX CONCURRENTLY nodes_unapproved ON nodes (id) WHERE manual = 1 AND approved = 0;
