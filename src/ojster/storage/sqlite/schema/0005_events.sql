-- What has happened, for those who want to follow it: the events of each transaction, as a JSON array, and how many bytes
-- all of them have taken so far, so that the oldest are deleted in time.
CREATE TABLE event_batches (
    seq    INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    total  INTEGER NOT NULL,
    events BLOB    NOT NULL
) STRICT;

CREATE INDEX event_batches_total ON event_batches (total);
