-- Rows that are locked instead of keys where the database has no advisory locks: see ojster.storage.postgres.abilities.
CREATE TABLE key_locks (slot BIGINT PRIMARY KEY);
INSERT INTO key_locks (slot) SELECT generate_series(0, 4095);
