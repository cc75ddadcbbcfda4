-- Events get their positions, without gaps, in the order in which they become visible, when somebody asks for them.
TRUNCATE event_batches;
ALTER TABLE event_batches DROP COLUMN IF EXISTS transaction_id;
ALTER TABLE event_batches ADD COLUMN position BIGINT;
CREATE UNIQUE INDEX event_batches_position ON event_batches (position) WHERE position IS NOT NULL;
CREATE INDEX event_batches_new ON event_batches (seq) WHERE position IS NULL;

-- The last position that was given: the events themselves may be lost in a crash.
CREATE TABLE event_positions (
    id   BIGINT PRIMARY KEY,
    last BIGINT NOT NULL
) WITH (fillfactor = 50);
