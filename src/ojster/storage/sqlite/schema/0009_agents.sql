-- What the server keeps of an agent's task, as JSON (ojster.agents.attributes): tokens used, its depth, results of tools.
ALTER TABLE jobs ADD COLUMN agent BLOB;
