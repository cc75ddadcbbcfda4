-- Containers of workflows some of whose children, from a position on, are to be started by later transactions. Those of
-- held workflows are parked.
CREATE TABLE deferred_starts (
    node INTEGER PRIMARY KEY,
    workflow INTEGER NOT NULL,
    position INTEGER NOT NULL,
    turn INTEGER NOT NULL, -- when it was gone on with: the container that waits longest is the next
    parked INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX deferred_starts_next ON deferred_starts (turn, node) WHERE parked = 0;

CREATE INDEX deferred_starts_workflow ON deferred_starts (workflow);
