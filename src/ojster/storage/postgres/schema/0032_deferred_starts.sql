-- Containers of workflows some of whose children, from a position on, are to be started by later transactions. Those of
-- held workflows are parked.
CREATE TABLE deferred_starts (
    node BIGINT PRIMARY KEY,
    workflow BIGINT NOT NULL,
    position BIGINT NOT NULL,
    turn BIGINT NOT NULL, -- when it was gone on with: the container that waits longest is the next
    parked BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX deferred_starts_next ON deferred_starts (turn, node) WHERE parked = 0;

CREATE INDEX deferred_starts_workflow ON deferred_starts (workflow);
