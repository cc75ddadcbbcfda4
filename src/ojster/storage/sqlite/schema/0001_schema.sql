-- The whole schema of Ojster on SQLite, one section for each capability.
--
-- All capabilities share this one file, because their tables refer to each other
-- (docs/adr/0021-one-series-of-migrations.md). A later version adds a script with the next number, and this one does
-- not change: CONTRIBUTING.md, "Schema changes".
--
-- Rules for all tables:
-- * Times are microseconds since the epoch, durations are microseconds. Integers have 64 bits. 1 and 0 are true and
--   false.
-- * Texts are compared byte by byte (BINARY, the default), as on PostgreSQL, so that both databases sort and page in
--   the same order. STRICT tables refuse a value of another type, as PostgreSQL does.
-- * Tables whose key is a text, and whose rows are short, have no rowid: a row is then found by one search instead of
--   two.
-- * JSON is stored as the bytes that a caller sent, and the database never looks into it.
-- * There are no foreign keys: deletions run in small transactions, part by part, and check what must be checked
--   themselves.
-- * Large values stand at the end of a table: SQLite reads a row from its start, and what is beyond a page only if
--   asked.

-- ====================================================================================================================
-- The database itself
-- ====================================================================================================================

-- Values of the whole installation by name, as JSON: the maintenance mode, how long events are followed, positions of
-- maintenance (storage/system.py).
CREATE TABLE system (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- ====================================================================================================================
-- Jobs
-- ====================================================================================================================

-- The small, hot row of a job: what the engine reads and changes. What never changes is in payloads, so that a change
-- of state does not copy it (docs/adr/0003-hot-row-and-immutable-payload.md). Finished jobs stay here until their
-- retention ends; every index of a hot query leaves them out.
CREATE TABLE jobs (
    seq                 INTEGER PRIMARY KEY,         -- the order of arrival; short, unlike the id, so the other tables
                                                     -- use it
    id                  TEXT    NOT NULL,            -- what callers know: a UUIDv7, which grows with time, as its index
                                                     -- does
    tenant              TEXT    NOT NULL DEFAULT '', -- '': no tenant
    queue               TEXT    NOT NULL,
    type                TEXT    NOT NULL,
    version             INTEGER,                     -- of the arguments, as a number; a worker gets only versions that
                                                     -- it handles

    state               TEXT    NOT NULL,
    priority            INTEGER NOT NULL,
    priority_adjustment INTEGER NOT NULL DEFAULT 0,  -- how much of the priority an operator has added since the push
    attempt             INTEGER NOT NULL DEFAULT 0,  -- the current or last one; 0: none yet
    max_attempts        INTEGER NOT NULL,
    losses              INTEGER NOT NULL DEFAULT 0,  -- attempts that ended with the death of their worker, which
                                                     -- max_attempts does not count
    dead                INTEGER NOT NULL DEFAULT 0,  -- 1: a dead letter
    checkpoint_number   INTEGER NOT NULL DEFAULT 0,  -- of its last checkpoint; 0: there is none, and the table need not
                                                     -- be read
    flags               INTEGER NOT NULL DEFAULT 0,  -- bits of core/job_flags.py: what else must be done when something
                                                     -- happens to the job

    created_at          INTEGER NOT NULL,
    enqueued_at         INTEGER,
    started_at          INTEGER,
    finished_at         INTEGER,
    expires_at          INTEGER,                     -- after this, it does not start any more
    due_at              INTEGER,                     -- when the engine must do something; the state says what: promote,
                                                     -- retry, end the lease, delete
    timeout             INTEGER,
    lease               INTEGER,                     -- as the job asks for; NULL: as the worker or the server says
    retry_delay         INTEGER,

    worker_id           TEXT,                        -- of the current or last attempt
    unique_key          TEXT,
    exclusive_key       TEXT,                        -- jobs that share it never run at the same time: those of a cron
                                                     -- job, the orchestrators of a workflow
    limit_key           TEXT,                        -- of its rate or concurrency limit in rate_limits
    needs               TEXT,                        -- what its worker must provide, as one key (fleet/requirements.py)
    cron_name           TEXT,                        -- of the cron job that created it
    node                INTEGER,                     -- the step that it runs, in nodes
    superseded_by       TEXT,                        -- the job that took its place when its workflow was retried
    suspension          TEXT,                        -- what becomes of a suspended job that is resumed
                                                     -- (workflows/suspensions.py); skipped: it did not run
    error_type          TEXT,                        -- of the last failed attempt, so that operators can select jobs by
                                                     -- it
    trace_id            TEXT,                        -- of the trace that it belongs to, for its events

    progress            BLOB,                        -- a JSON object, as the handler reported it last
    result              BLOB,
    errors              BLOB,                        -- a JSON array with an object for each failed attempt
    agent               BLOB                         -- of an agent: tokens used, depth, results of tools, as JSON
                                                     -- (agents/attributes.py)
) STRICT;

-- All indexes are partial, apart from that of ids, so that a plain job is in few of them: it costs two when it waits,
-- two when it runs, two when it has completed. docs/adr/0023-each-index-has-its-query.md lists who needs which, and a
-- test (tests/storage/test_plans.py) fails for an index that no statement uses.

-- Find and lock a job by its id; no two jobs have one id.
CREATE UNIQUE INDEX jobs_id
    ON jobs (id);

-- Claim plain jobs: one range for each queue and tenant, already in the order of the claim, so that it stops after as
-- many rows as it wants. Jobs with a limit or requirements are in the next two: a claim would read past all that must
-- wait.
CREATE INDEX jobs_available
    ON jobs (queue, tenant, priority DESC, seq)
    WHERE state = 'available' AND limit_key IS NULL AND needs IS NULL;

-- Claim jobs with a limit: the claim jumps from key to key, and takes the first jobs of those that have room.
CREATE INDEX jobs_limited
    ON jobs (queue, tenant, limit_key, priority DESC, seq)
    WHERE state = 'available' AND limit_key IS NOT NULL;

-- Claim jobs with requirements: the claim jumps from one kind of requirements to the next, and asks of each only once
-- whether the worker meets it.
CREATE INDEX jobs_needing
    ON jobs (queue, tenant, needs, priority DESC, seq)
    WHERE state = 'available' AND needs IS NOT NULL;

-- Which tenants have something to do in a queue: a claim for all of them jumps from tenant to tenant, also across the
-- three indexes above.
CREATE INDEX jobs_tenants
    ON jobs (queue, tenant)
    WHERE state = 'available' AND tenant <> '';

-- Claims leave out jobs whose key an active job has.
CREATE INDEX jobs_exclusive
    ON jobs (exclusive_key)
    WHERE exclusive_key IS NOT NULL AND state = 'active';

-- Usage of a limit: its active jobs are counted, because a stored number could drift from the truth
-- (docs/adr/0014-usage-is-counted-not-stored.md).
CREATE INDEX jobs_limit
    ON jobs (limit_key, state)
    WHERE limit_key IS NOT NULL AND finished_at IS NULL;

-- Resources in use: the requirements of active jobs are added up from the index alone.
CREATE INDEX jobs_needing_active
    ON jobs (queue, needs)
    WHERE state = 'active' AND needs IS NOT NULL;

-- All maintenance, and when it must wake next: promotion, retries, leases and timeouts, retention of a job's own.
CREATE INDEX jobs_due
    ON jobs (state, due_at)
    WHERE due_at IS NOT NULL;

-- Duplicates of a unique job, finished ones too: a period of uniqueness may go on after the end.
CREATE INDEX jobs_unique
    ON jobs (unique_key)
    WHERE unique_key IS NOT NULL;

-- All jobs of a cron job: its last runs. With the number, although each index of SQLite has it: SQLite takes the
-- narrower of two indexes, and must take jobs_cron to look for jobs that overlap.
CREATE INDEX jobs_of_cron
    ON jobs (cron_name, seq)
    WHERE cron_name IS NOT NULL;

-- Unfinished jobs of a cron job: whether its next occurrence overlaps with them.
CREATE INDEX jobs_cron
    ON jobs (cron_name)
    WHERE cron_name IS NOT NULL AND finished_at IS NULL;

-- Jobs of a workflow: nodes of one workflow are a range of numbers.
CREATE INDEX jobs_node
    ON jobs (node)
    WHERE node IS NOT NULL;

-- Suspended jobs of a workflow: lists of workflows show and select what each waits for.
CREATE INDEX jobs_suspended
    ON jobs (node)
    WHERE state = 'pending' AND suspension IS NOT NULL AND node IS NOT NULL;

-- Lists and filters of one tenant; the jobs of none are most of them where there are no tenants.
CREATE INDEX jobs_tenant
    ON jobs (tenant, seq)
    WHERE tenant <> '';

-- Retention, and lists of finished jobs. Jobs of workflows are deleted with their workflow, and jobs that say
-- themselves how long they are kept are found in jobs_due.
CREATE INDEX jobs_finished
    ON jobs (state, dead, finished_at)
    WHERE finished_at IS NOT NULL AND node IS NULL AND due_at IS NULL;

-- The list of dead letters, and their maximum number.
CREATE INDEX jobs_dead
    ON jobs (dead, seq)
    WHERE dead = 1;

-- Jobs that gave up, newest first, of workflows too: failures in groups, and the dead letters of the last hour.
CREATE INDEX jobs_discarded
    ON jobs (dead, finished_at)
    WHERE state = 'discarded';

-- What never changes of a job: the bytes of its request.
CREATE TABLE payloads (
    seq       INTEGER PRIMARY KEY, -- of the job
    stored    BLOB    NOT NULL,    -- the envelope, without the value that is in shared_values
    shared    BLOB,                -- the digest of that value; NULL: nothing was taken out
    shared_at INTEGER              -- the place in the envelope, in bytes, where it belongs
) STRICT;

-- Large values that many jobs of a workflow contain, such as its parameters: stored once (core/shared_value.py).
CREATE TABLE shared_values (
    digest   BLOB    NOT NULL PRIMARY KEY,
    workflow INTEGER NOT NULL, -- its seq; they are deleted with it
    value    BLOB    NOT NULL
) STRICT;

-- Delete the values of a workflow.
CREATE INDEX shared_values_workflow
    ON shared_values (workflow);

-- The last state that the handler of a job has saved, for its next attempt.
CREATE TABLE checkpoints (
    seq        INTEGER PRIMARY KEY, -- of the job
    state      BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

-- What has happened to jobs and does not show in their rows: failures, retries, cancellations, interventions. A job
-- that succeeds at once has no row here.
CREATE TABLE job_history (
    id   INTEGER PRIMARY KEY,
    seq  INTEGER NOT NULL, -- of the job
    at   INTEGER NOT NULL,
    type TEXT    NOT NULL, -- of the event
    data BLOB    NOT NULL  -- a JSON object
) STRICT;

-- The history of a job in its order; delete it with the job.
CREATE INDEX job_history_seq
    ON job_history (seq, id);

-- What handlers have logged, if their job types ask for it (jobs/job_logs.py).
CREATE TABLE job_logs (
    seq     INTEGER NOT NULL, -- of the job
    number  INTEGER NOT NULL, -- of the line, from 1
    attempt INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    level   TEXT    NOT NULL,
    logger  TEXT    NOT NULL,
    message TEXT    NOT NULL,
    upto    INTEGER NOT NULL, -- bytes of the job's lines up to this one
    PRIMARY KEY (seq, number)
) STRICT, WITHOUT ROWID;

-- Old lines, for retention.
CREATE INDEX job_logs_at
    ON job_logs (at);

-- Attempts of steps that the server has ended while their worker may still run them. Their workflow goes on when the
-- worker confirms the end, or the lease is over: until then, nothing may take their place (jobs/ending_attempts.py).
CREATE TABLE ending_attempts (
    seq       INTEGER PRIMARY KEY, -- of the job
    worker_id TEXT,
    until     INTEGER NOT NULL     -- the latest end of the wait
) STRICT;

-- Those whose wait is over, and the time of the next one.
CREATE INDEX ending_attempts_until
    ON ending_attempts (until);

-- Those of a worker that has stopped.
CREATE INDEX ending_attempts_worker
    ON ending_attempts (worker_id);

-- Answers to requests that a client may send again, under its idempotency key.
CREATE TABLE idempotency_keys (
    operation   TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL, -- of the request: another one with the same key is refused
    status      INTEGER NOT NULL, -- of the answer
    body        BLOB    NOT NULL,
    created_at  INTEGER NOT NULL, -- shifted by the difference of its retention from a day
    PRIMARY KEY (operation, key)
) STRICT, WITHOUT ROWID;

-- Delete those that are older than a day.
CREATE INDEX idempotency_keys_age
    ON idempotency_keys (created_at);

-- Options that jobs of a type have unless their request says otherwise, as JSON members of an enqueue request.
CREATE TABLE job_types (
    type       TEXT    PRIMARY KEY,
    defaults   BLOB    NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What workers announce of the arguments of each job type that they handle, for forms that enqueue one.
CREATE TABLE signatures (
    tenant       TEXT    NOT NULL,
    type         TEXT    NOT NULL,
    schema       BLOB    NOT NULL, -- a JSON Schema of the array of arguments
    is_flow      INTEGER NOT NULL, -- 1: it starts as a flow
    announced_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, type)
) STRICT, WITHOUT ROWID;

-- Schemas of the arguments of job types. The version is three numbers, so that versions sort as they should.
CREATE TABLE schemas (
    type       TEXT    NOT NULL,
    major      INTEGER NOT NULL,
    minor      INTEGER NOT NULL,
    patch      INTEGER NOT NULL,
    name       TEXT    NOT NULL, -- the version as it was sent
    mode       TEXT    NOT NULL, -- strict, warn or off
    body       BLOB    NOT NULL,
    created_at INTEGER NOT NULL,
    uri        TEXT,             -- under which it was registered; NULL: the one that type and version give
    PRIMARY KEY (type, major, minor, patch)
) STRICT, WITHOUT ROWID;

-- ====================================================================================================================
-- Queues
-- ====================================================================================================================

-- A queue has a row once a job was pushed to it, or an operator has configured it.
CREATE TABLE queues (
    name       TEXT    PRIMARY KEY,
    created_at INTEGER NOT NULL,
    paused_at  INTEGER, -- NULL: it is not paused
    config     BLOB     -- what an operator has set, as a JSON object
) STRICT, WITHOUT ROWID;

-- How many jobs are in which state, kept by every transaction that changes one, because counting would read all jobs.
-- The names /tenant/ID/QUEUE count those of a tenant beside those of the queue.
CREATE TABLE job_counts (
    queue TEXT    NOT NULL,
    state TEXT    NOT NULL,
    jobs  INTEGER NOT NULL,
    PRIMARY KEY (queue, state)
) STRICT, WITHOUT ROWID;

-- Limits of jobs that share a key, and (/queue/NAME) of a queue: what is allowed, and what is used of it in time. How
-- many jobs are active is counted in jobs_limit.
CREATE TABLE rate_limits (
    key               TEXT    PRIMARY KEY,
    queues            TEXT    NOT NULL,           -- that have had such jobs, as a JSON array: they are looked at when
                                                  -- there is room again
    concurrency       INTEGER,
    rate_limit        INTEGER,                    -- starts in a window of rate_period
    rate_period       INTEGER,
    throttle_limit    INTEGER,                    -- starts in throttle_period, evenly spaced
    throttle_period   INTEGER,
    on_limit          TEXT    NOT NULL,           -- wait, drop or reschedule, as in queues/rate_limit.py
    override          BLOB,                       -- what an operator has put in place of these, as JSON
    override_until    INTEGER,                    -- NULL: for good
    window_started_at INTEGER NOT NULL DEFAULT 0,
    window_used       INTEGER NOT NULL DEFAULT 0,
    next_start_at     INTEGER NOT NULL DEFAULT 0, -- the earliest one that the throttle allows
    blocked_until     INTEGER NOT NULL DEFAULT 0, -- as a handler has asked with RateLimited
    opens_at          INTEGER,                    -- when there is room again, if that is known and there is none now
    exceeded          TEXT,                       -- what had no room at the last claim
    used_at           INTEGER                     -- when a job with the key was pushed, to the day; NULL: of a queue or a
                                                  -- worker
) STRICT, WITHOUT ROWID;

-- Limits that have room again, whose queues must be looked at, and the time of the next one.
CREATE INDEX rate_limits_opens
    ON rate_limits (opens_at)
    WHERE opens_at IS NOT NULL;

-- Keys that no job has had for long, which retention deletes.
CREATE INDEX rate_limits_used
    ON rate_limits (used_at)
    WHERE used_at IS NOT NULL;

-- Pools of workers, and how queues share them, as JSON. A worker names its pool.
CREATE TABLE pools (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- ====================================================================================================================
-- Workflows
-- ====================================================================================================================

-- A workflow, and the counts of its jobs. Its steps are nodes, its running steps are jobs.
CREATE TABLE workflows (
    seq                INTEGER PRIMARY KEY,        -- the nodes of a workflow have it in their numbers
    id                 TEXT    NOT NULL,           -- a UUIDv7, or any short text that its creator has chosen
    tenant             TEXT    NOT NULL DEFAULT '',
    type               TEXT    NOT NULL,
    name               TEXT,
    definition         TEXT,                       -- the name of the definition that it was started from
    definition_version INTEGER,
    target             TEXT,
    target_key         TEXT,                       -- the hash of definition, target and parameters, which no other
                                                   -- unfinished workflow may have
    locks              TEXT,                       -- the names that it locks while it is unfinished, as a JSON array
    created_by         TEXT,
    cancelled_by       TEXT,
    cron_name          TEXT,                       -- of the cron job that started it
    turn_line          INTEGER NOT NULL DEFAULT 0, -- in which it starts after the earlier ones of its cron job; 0:
                                                   -- it takes no turns

    state              TEXT    NOT NULL,           -- also forgotten: not yet complete, or being deleted, and seen by
                                                   -- nobody
    version            INTEGER NOT NULL DEFAULT 0, -- grows with every change, so that followers see that there was one
    created_at         INTEGER NOT NULL,
    started_at         INTEGER,
    cancelled_at       INTEGER,
    finished_at        INTEGER,                    -- when none of its jobs ran any more; a cancelled one is cancelled
                                                   -- earlier
    due_at             INTEGER,                    -- when the engine must do something; the state says what: start or
                                                   -- expire, time out, give up an unfinished creation
    scheduled_at       INTEGER,
    expires_at         INTEGER,
    timeout            INTEGER,
    held_at            INTEGER,                    -- NULL: it is not held
    expiration_delay   INTEGER,                    -- how long it is kept after its end; NULL: as the server or the
                                                   -- workspace says
    kept_until         INTEGER,                    -- the time of that, once it is finished

    nodes              INTEGER NOT NULL,           -- how many it has had: the number of the next one
    jobs               INTEGER NOT NULL,
    completed          INTEGER NOT NULL DEFAULT 0,
    failed             INTEGER NOT NULL DEFAULT 0,
    cancelled          INTEGER NOT NULL DEFAULT 0,
    retries            INTEGER NOT NULL DEFAULT 0,
    resolved_bytes     INTEGER NOT NULL DEFAULT 0, -- of jobs into which references were resolved, which is limited

    attempt            INTEGER NOT NULL DEFAULT 1, -- of a workflow that is run again as a whole, as another workflow
    previous_attempt   TEXT,                       -- the id of that workflow
    next_attempt       TEXT,
    forked_from        TEXT,                       -- the id of the workflow that runs again as this one
    forked_step        TEXT,                       -- from which step on; NULL: from its start
    on_lost_worker     TEXT,                       -- cancel: it ends when a worker with one of its jobs is lost

    params             BLOB    NOT NULL,           -- JSON, like the rest
    metadata           BLOB    NOT NULL,
    others             BLOB,                       -- members of its request that the server does not know, with which it is shown
    start              BLOB,                       -- the request that started it from its definition, to start the next
                                                   -- attempt
    error              BLOB                        -- why it failed, if the failure of no step says so
) STRICT;

-- Find and lock a workflow by its id.
CREATE UNIQUE INDEX workflows_id
    ON workflows (id);

-- Workflows with something to do, and the time of the next one.
CREATE INDEX workflows_due
    ON workflows (due_at)
    WHERE due_at IS NOT NULL;

-- The forks of a workflow: they are shown with it, and keep it from being deleted.
CREATE INDEX workflows_forks
    ON workflows (forked_from, seq)
    WHERE forked_from IS NOT NULL;

-- All workflows of a cron job: its last runs.
CREATE INDEX workflows_of_cron
    ON workflows (cron_name, seq)
    WHERE cron_name IS NOT NULL;

-- Unfinished workflows of a cron job: whether its next occurrence overlaps with them, and whose turn it is. Without
-- the number, so that SQLite takes it instead of workflows_of_cron: see jobs_cron.
CREATE INDEX workflows_cron
    ON workflows (cron_name)
    WHERE cron_name IS NOT NULL AND finished_at IS NULL;

-- Lists by state, newest first.
CREATE INDEX workflows_state
    ON workflows (state, seq);

-- Retention by the period of a state.
CREATE INDEX workflows_finished
    ON workflows (state, finished_at)
    WHERE finished_at IS NOT NULL;

-- Retention of those that say themselves how long they are kept.
CREATE INDEX workflows_kept
    ON workflows (kept_until)
    WHERE kept_until IS NOT NULL;

-- Lists of one tenant.
CREATE INDEX workflows_tenant
    ON workflows (tenant, seq)
    WHERE tenant <> '';

-- Whether workflows of a definition still run, which keeps it from being deleted.
CREATE INDEX workflows_definition
    ON workflows (definition)
    WHERE definition IS NOT NULL AND finished_at IS NULL;

-- One unfinished workflow for a target: unique, so that two starts at the same time cannot both succeed.
CREATE UNIQUE INDEX workflows_target
    ON workflows (target_key)
    WHERE target_key IS NOT NULL AND finished_at IS NULL;

-- The locks of a tenant's unfinished workflows, which a new one must not share. Few workflows have some.
CREATE INDEX workflows_locks
    ON workflows (tenant)
    WHERE locks IS NOT NULL AND finished_at IS NULL;

-- The nodes of workflows: jobs and containers (workflows/node.py). Each keeps counts of its predecessors and
-- children, so that a decision about a node reads that node alone.
CREATE TABLE nodes (
    id               INTEGER PRIMARY KEY, -- seq of the workflow << 20 | number of the node: those of a workflow stand
                                          -- together
    parent           INTEGER,             -- its container; the root has none
    position         INTEGER NOT NULL,    -- among the children of its container
    kind             TEXT    NOT NULL,
    name             TEXT,
    rule             TEXT    NOT NULL,    -- how its predecessors must have ended
    tolerated        INTEGER NOT NULL,    -- 1: its own failure counts as success (allow_failure)
    manual           INTEGER NOT NULL,    -- 1: it needs an approval
    approved         INTEGER NOT NULL,
    inputs           TEXT,                -- which results its job receives
    source           INTEGER,             -- the node whose inputs apply: itself, or a container around it
    followed         INTEGER NOT NULL,    -- bits: where its successors are, so that a node without some looks for none

    state            TEXT    NOT NULL,
    verdict          TEXT,                -- the state in which it ends whatever its children do, because it was stopped
    started_at       INTEGER,
    finished_at      INTEGER,
    job_id           TEXT,

    waiting          INTEGER NOT NULL,    -- predecessors that have not ended
    failed_before    INTEGER NOT NULL,    -- predecessors that failed
    cancelled_before INTEGER NOT NULL,    -- predecessors that were cancelled
    unmet            INTEGER NOT NULL,    -- of these two, those that are not tolerated
    total            INTEGER NOT NULL,    -- children
    unfinished       INTEGER NOT NULL,    -- children that have not ended
    completed        INTEGER NOT NULL,
    failed           INTEGER NOT NULL,
    cancelled        INTEGER NOT NULL,
    broken           INTEGER NOT NULL,    -- children that failed and are not tolerated
    lost             INTEGER NOT NULL,    -- children that were cancelled and are not tolerated

    result           BLOB,                -- JSON, of a node that ended without a job
    error            BLOB
) STRICT;

-- The children of a container in their order.
CREATE INDEX nodes_parent
    ON nodes (parent, position)
    WHERE parent IS NOT NULL;

-- Nodes that wait for their approval, by what does not change while a node runs. With the state in its condition,
-- PostgreSQL would change every index of the table with every change of a state.
CREATE INDEX nodes_unapproved
    ON nodes (id)
    WHERE manual = 1 AND approved = 0;

-- What a node needs when it starts: written once, and large, so it is not copied with each change of a node.
CREATE TABLE node_specs (
    id   INTEGER PRIMARY KEY, -- of the node
    spec BLOB    NOT NULL
) STRICT;

-- Which node comes before which. The order of the key serves the end of a source: its targets are counted down.
CREATE TABLE node_edges (
    source   INTEGER NOT NULL,
    target   INTEGER NOT NULL,
    promised INTEGER NOT NULL DEFAULT 0, -- 1: it follows from an item that the source promises and the target looks up
    PRIMARY KEY (source, target)
) STRICT, WITHOUT ROWID;

-- The predecessors of a node: what it receives, and what graphs show.
CREATE INDEX node_edges_target
    ON node_edges (target);

-- Workflows with steps that wait for a promised item. Few edges are such.
CREATE INDEX node_edges_promised
    ON node_edges (target)
    WHERE promised = 1;

-- What people have said of nodes that wait for an approval.
CREATE TABLE node_reviews (
    seq    INTEGER PRIMARY KEY,
    node   INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    author TEXT,
    action TEXT, -- approve, reject, answer or decline; NULL: only a note
    notes  TEXT,
    answer BLOB  -- what the step was resumed with, as JSON, unless it is long
) STRICT;

-- The reviews of a node; delete them with its workflow.
CREATE INDEX node_reviews_node
    ON node_reviews (node);

-- Elements of maps that have no nodes yet: later transactions create them, a few at a time, so that others do not
-- wait. A map that was stopped keeps its own, parked, for a retry.
CREATE TABLE map_elements (
    node     INTEGER NOT NULL,           -- the map
    start    INTEGER NOT NULL,           -- the index of the first of these elements
    number   INTEGER NOT NULL,           -- how many they are
    parked   INTEGER NOT NULL DEFAULT 0,
    tenant   TEXT    NOT NULL DEFAULT '',
    jobs     INTEGER NOT NULL DEFAULT 0, -- how many they become, which counts towards the limits of the tenant
    elements BLOB    NOT NULL,           -- JSON
    PRIMARY KEY (node, start)
) STRICT, WITHOUT ROWID;

-- The next elements: of each map first the first ones, so that a large map does not keep others waiting.
CREATE INDEX map_elements_next
    ON map_elements (start, node)
    WHERE parked = 0;

-- How many jobs of a tenant are still to come: added up from the index alone at each push under a limit.
CREATE INDEX map_elements_tenant
    ON map_elements (tenant, jobs)
    WHERE parked = 0 AND tenant <> '';

-- Containers whose children, from a position on, are to be started by later transactions, because one starts at most
-- a few hundred. Those of held workflows are parked.
CREATE TABLE deferred_starts (
    node     INTEGER PRIMARY KEY, -- the container
    workflow INTEGER NOT NULL,
    position INTEGER NOT NULL,
    turn     INTEGER NOT NULL,    -- the time since when it waits: the longest wait is next
    parked   INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The containers that wait longest, and when the next one may go on.
CREATE INDEX deferred_starts_next
    ON deferred_starts (turn, node)
    WHERE parked = 0;

-- Those of a workflow: park, release and delete them.
CREATE INDEX deferred_starts_workflow
    ON deferred_starts (workflow);

-- What flows have asked for: local steps, awaited steps of the graph, messages. The node is the step that runs the flow's
-- function. A flow that runs again gets what has ended, and goes on where it was (docs/flows.md).
CREATE TABLE flow_records (
    flow     INTEGER NOT NULL, -- the node of the job that runs the flow
    key      TEXT    NOT NULL, -- the place in the program
    kind     TEXT    NOT NULL, -- begin, step, run, receive, receive_many, listen, listen_many, cancel, patch,
                               -- published, answer, stream, sleep or position
    name     TEXT    NOT NULL, -- of the step, the job type, or the message
    input    TEXT,             -- a digest of what it was asked for with
    node     INTEGER,          -- of a run: the step that it waits for
    asked_at INTEGER NOT NULL, -- in the time of the flow
    ended_at INTEGER,          -- NULL: the flow waits for it
    place    INTEGER,          -- in the order in which the flow saw ends, where more than one could have been next
    seen_at  INTEGER,          -- when it saw it, in its time; NULL: when it ended
    result   BLOB,
    error    BLOB,             -- a JSON object
    number   INTEGER,          -- of its end among those that others have brought to the flow, from 1
    PRIMARY KEY (flow, key)
) STRICT, WITHOUT ROWID;

-- The record that waits for a step that has ended.
CREATE INDEX flow_records_node
    ON flow_records (node)
    WHERE node IS NOT NULL;

-- What has ended since a worker looked last: a flow with thousands of steps reads each end once.
CREATE INDEX flow_records_number
    ON flow_records (flow, number)
    WHERE number IS NOT NULL;

-- Jobs of earlier rounds of flows that began anew: they are no steps any more, and are deleted with the workflow.
CREATE TABLE former_steps (
    seq      INTEGER PRIMARY KEY, -- of the job
    workflow INTEGER NOT NULL
) STRICT;

-- Those of a workflow: delete them.
CREATE INDEX former_steps_workflow
    ON former_steps (workflow);

-- Messages to flows, in the order in which they came. They may come before the flow waits for them, or starts.
CREATE TABLE flow_messages (
    number          INTEGER PRIMARY KEY,
    flow            INTEGER NOT NULL,
    name            TEXT    NOT NULL,
    idempotency_key TEXT,
    sent_at         INTEGER NOT NULL,
    sent_by         TEXT,
    taken_by        TEXT,             -- the key of the record that received it; NULL: nobody has
    data            BLOB    NOT NULL,
    answered_at     INTEGER,          -- of an update: when the flow has answered it
    answer          BLOB,
    error           BLOB              -- a JSON object
) STRICT;

-- The next message of a name; those that were received are passed over.
CREATE INDEX flow_messages_next
    ON flow_messages (flow, name, number)
    WHERE taken_by IS NULL;

-- What a record has received: to answer it, or to put it back.
CREATE INDEX flow_messages_taken
    ON flow_messages (flow, taken_by)
    WHERE taken_by IS NOT NULL;

-- All messages of a flow: which one has an idempotency key; delete them.
CREATE INDEX flow_messages_flow
    ON flow_messages (flow, idempotency_key);

-- Messages to all flows of a tenant that wait for a name and a key. They are kept for a week: flows may look back.
-- AUTOINCREMENT: a flow waits for numbers above those that it has received, also when all broadcasts were deleted.
CREATE TABLE broadcasts (
    number          INTEGER PRIMARY KEY AUTOINCREMENT,
    topic           TEXT NOT NULL, -- the tenant, the name and the key, as JSON
    idempotency_key TEXT,
    sent_at         INTEGER NOT NULL,
    sent_by         TEXT,
    reached         INTEGER,          -- flows up to this one have got it, if they waited; NULL: all have
    flows           INTEGER NOT NULL, -- how many have got it, those left out that came later
    data            BLOB NOT NULL
) STRICT;

-- The next broadcast for a flow.
CREATE INDEX broadcasts_topic
    ON broadcasts (topic, number);

-- The broadcast that is sent again.
CREATE UNIQUE INDEX broadcasts_key
    ON broadcasts (topic, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

-- Broadcasts whose sender may have died before all flows had them.
CREATE INDEX broadcasts_undelivered
    ON broadcasts (number)
    WHERE reached IS NOT NULL;

-- The oldest broadcasts: delete them.
CREATE INDEX broadcasts_sent
    ON broadcasts (sent_at);

-- Which broadcasts records of flows wait for, or have received. The row stays: the flow misses nothing until it waits again.
CREATE TABLE broadcast_receivers (
    flow  INTEGER NOT NULL,
    key   TEXT NOT NULL, -- of the record
    topic TEXT NOT NULL,
    since INTEGER NOT NULL, -- the number of the last broadcast before those that it receives; 0: it receives all
    waits INTEGER NOT NULL,
    taken INTEGER,          -- the number of the last broadcast that the record has received; negative: it has put them back
    PRIMARY KEY (flow, key)
) STRICT, WITHOUT ROWID;

-- The flows that wait for a broadcast, whatever their number among all flows.
CREATE INDEX broadcast_receivers_waiting
    ON broadcast_receivers (topic, flow)
    WHERE waits = 1;

-- What a flow has received of a topic.
CREATE INDEX broadcast_receivers_topic
    ON broadcast_receivers (flow, topic);

-- Streams of workflows: flows and jobs append values, and readers follow them from any position.
CREATE TABLE streams (
    workflow  INTEGER NOT NULL,
    name      TEXT NOT NULL,
    length    INTEGER NOT NULL, -- the number of the last chunk; the row is locked while chunks get their numbers
    bytes     INTEGER NOT NULL, -- the size of all values, which is limited
    is_closed INTEGER NOT NULL, -- whether the last chunk is an end
    PRIMARY KEY (workflow, name)
) STRICT, WITHOUT ROWID;

-- What was appended to streams. Numbers ascend; some are missing after a retry has removed the end.
CREATE TABLE stream_chunks (
    workflow  INTEGER NOT NULL,
    name      TEXT NOT NULL, -- of the stream
    number    INTEGER NOT NULL, -- the position, from 1
    at        INTEGER NOT NULL,
    flow      INTEGER,          -- the flow whose function has appended it; NULL: a job has, or an earlier round of a flow
    asked_at  INTEGER,          -- when it did, in the time of the flow
    append_id TEXT,          -- of the first chunk of an append by a job, so that it is made once
    data      BLOB,             -- any JSON value; NULL: the end of the stream
    PRIMARY KEY (workflow, name, number)
) STRICT, WITHOUT ROWID;

-- The append that is made again because its answer was lost.
CREATE INDEX stream_chunks_append
    ON stream_chunks (workflow, append_id)
    WHERE append_id IS NOT NULL;

-- Data that suspended jobs were resumed with, for the attempts that follow. Deleted with the job.
CREATE TABLE resumptions (
    seq  INTEGER PRIMARY KEY, -- of the job
    data BLOB NOT NULL     -- any JSON value
) STRICT;

-- Answers that came before steps and jobs waited for them. Deleted when they do, or with the workflow or the job.
CREATE TABLE early_answers (
    number INTEGER PRIMARY KEY,
    node   INTEGER,       -- the step; NULL: the job is none
    seq    INTEGER,       -- the job that is no step
    answer BLOB NOT NULL -- a resumption, as JSON
) STRICT;

-- The answer of a step that waits now; there is one.
CREATE UNIQUE INDEX early_answers_node
    ON early_answers (node);

-- The answer of a job that waits now; there is one.
CREATE UNIQUE INDEX early_answers_seq
    ON early_answers (seq);

-- Values that the steps of a workflow share. A deleted one stays, without a value, so that its version is not used
-- again.
CREATE TABLE workflow_properties (
    workflow INTEGER NOT NULL,
    name     TEXT    NOT NULL,
    value    BLOB,             -- NULL: deleted
    version  INTEGER NOT NULL, -- for compare-and-set; numbered for each workflow
    PRIMARY KEY (workflow, name)
) STRICT;

-- What running jobs say of themselves, and what others say of workflows.
CREATE TABLE notes (
    number   INTEGER PRIMARY KEY,
    workflow INTEGER,
    seq      INTEGER,         -- of the job; NULL: it is about the workflow
    at       INTEGER NOT NULL,
    note     BLOB    NOT NULL -- any JSON value
) STRICT;

-- The latest notes of a workflow and its jobs.
CREATE INDEX notes_workflow
    ON notes (workflow, number)
    WHERE workflow IS NOT NULL;

-- The notes of a job, and how many there are.
CREATE INDEX notes_job
    ON notes (seq, number)
    WHERE seq IS NOT NULL;

-- Workflows that are started by name. Every change is a version of its own; the workflows are snapshots.
CREATE TABLE definitions (
    name          TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    body          BLOB    NOT NULL, -- the members of the workflow that it stands for, as JSON
    params_schema BLOB,             -- a JSON Schema
    hashes        BLOB    NOT NULL, -- SHA-256 of each branch, as JSON: whether a registration changes anything
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) STRICT;

-- ====================================================================================================================
-- Schedules
-- ====================================================================================================================

-- Cron jobs.
CREATE TABLE crons (
    name           TEXT    PRIMARY KEY,
    expression     TEXT    NOT NULL,
    timezone       TEXT    NOT NULL,
    overlap_policy TEXT    NOT NULL,
    enabled        INTEGER NOT NULL,
    description    TEXT,
    template       BLOB    NOT NULL, -- the enqueue request of each job, as JSON
    workflow       BLOB,             -- the request for a workflow that it starts instead of a job
    created_at     INTEGER NOT NULL,
    last_run_at    INTEGER,
    next_run_at    INTEGER,          -- NULL: never, or disabled
    run_count      INTEGER NOT NULL DEFAULT 0,
    created_by     TEXT              -- who registered it first, the creator of its runs
) STRICT, WITHOUT ROWID;

-- Cron jobs that are due, and the time of the next one.
CREATE INDEX crons_next
    ON crons (next_run_at)
    WHERE next_run_at IS NOT NULL;

-- Occurrences of cron jobs that started nothing, and why. Consecutive ones with the same cause are one row. The newest of
-- each cron job are kept; deleted with it.
CREATE TABLE cron_misses (
    cron_name   TEXT    NOT NULL,
    since       INTEGER NOT NULL, -- the first occurrence
    until       INTEGER NOT NULL, -- the last one
    occurrences INTEGER NOT NULL,
    complete    INTEGER NOT NULL, -- 0: counted up to a limit
    reason      TEXT    NOT NULL, -- overlap_skip, dst_skip, maintenance, late, or the code of a refusal
    message     TEXT    NOT NULL, -- the reason, for people
    active_id   TEXT,             -- the run that had not finished, if that is the reason
    noted_at    INTEGER NOT NULL, -- when the last one was recorded
    PRIMARY KEY (cron_name, since)
) STRICT, WITHOUT ROWID;

-- Rows past their retention.
CREATE INDEX cron_misses_noted
    ON cron_misses (noted_at);

-- ====================================================================================================================
-- Fleet
-- ====================================================================================================================

-- The workers that have sent a heartbeat lately.
CREATE TABLE workers (
    id           TEXT    PRIMARY KEY,
    state        TEXT    NOT NULL, -- what the worker says of itself: running, quiet or terminate
    directive    TEXT,             -- what an operator wants of it
    pool         TEXT,
    hostname     TEXT,
    pid          INTEGER,
    queues       TEXT    NOT NULL, -- a JSON array
    labels       TEXT    NOT NULL, -- a JSON array
    abilities    TEXT,             -- which versions it handles and what it provides, as a JSON object; NULL: it does
                                   -- not say
    concurrency  INTEGER,
    active_jobs  INTEGER NOT NULL,
    started_at   INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Workers whose heartbeats stopped, for a day, because people ask afterwards what they held.
CREATE TABLE lost_workers (
    id           TEXT    PRIMARY KEY,
    hostname     TEXT,
    pid          INTEGER,
    queues       TEXT    NOT NULL, -- a JSON array
    started_at   INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL,
    lost_at      INTEGER NOT NULL, -- 0: it may be heard again, but leases have expired since
    held         INTEGER NOT NULL, -- the number of jobs that it held
    job_ids      TEXT    NOT NULL  -- of the first of them, a JSON array
) STRICT, WITHOUT ROWID;

-- Lists the last ones, and finds those to be deleted.
CREATE INDEX lost_workers_lost ON lost_workers (lost_at);

-- Each start of a worker in the last sixty days: on which host it ran, and which code. Charts show the work of a host,
-- also of workers that have stopped, and mark when new code came.
CREATE TABLE worker_starts (
    number       INTEGER PRIMARY KEY,
    worker_id    TEXT    NOT NULL,
    hostname     TEXT,
    queues       TEXT    NOT NULL, -- a JSON array
    code_version TEXT,             -- NULL: the worker does not say
    is_new       INTEGER NOT NULL, -- 1: no worker of these queues started with this code before
    started_at   INTEGER NOT NULL
) STRICT;

-- Starts in a span of time, and the old ones.
CREATE INDEX worker_starts_at ON worker_starts (started_at);

-- Whether code is new on some queues. Lists of queues may be too long for an index.
CREATE INDEX worker_starts_code ON worker_starts (code_version);

-- What operators say of workers, whether these are present or not, as JSON.
CREATE TABLE worker_rules (
    id      TEXT    PRIMARY KEY,
    body    BLOB    NOT NULL,
    enabled INTEGER NOT NULL -- 0: it gets no jobs
) STRICT, WITHOUT ROWID;

-- ====================================================================================================================
-- Events
-- ====================================================================================================================

-- The events of each transaction as a JSON array, for those who follow them.
CREATE TABLE event_batches (
    seq    INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    total  INTEGER NOT NULL, -- how many bytes all events have taken so far: the oldest are deleted beyond 64 MiB
    events BLOB    NOT NULL
) STRICT;

-- Delete the oldest events by the bytes that came after them.
CREATE INDEX event_batches_total
    ON event_batches (total);

-- Subscriptions of webhooks, a JSON object each.
CREATE TABLE webhooks (
    id   TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Where notifications of jobs go to, a JSON object each.
CREATE TABLE channels (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Push endpoints: functions to which servers send jobs, a JSON object each. Their limits are in rate_limits.
CREATE TABLE push_endpoints (
    id   TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Webhooks and channels whose last delivery failed, for the alarm of operators; one that accepts deliveries has no row.
CREATE TABLE failing_receivers (
    receiver  TEXT    PRIMARY KEY, -- the id of a webhook, or the name of a channel
    address   TEXT    NOT NULL,    -- what people know it by
    since     INTEGER NOT NULL,    -- the first failure since the last success
    failed_at INTEGER NOT NULL,
    failures  INTEGER NOT NULL,    -- the number of attempts that failed since then
    error     TEXT    NOT NULL     -- of the last one
) STRICT, WITHOUT ROWID;

-- ====================================================================================================================
-- Collections and files
-- ====================================================================================================================

-- Named collections. Those of workflows and jobs have no row: they are named after these in their items.
CREATE TABLE collections (
    name         TEXT    PRIMARY KEY,
    description  TEXT,
    created_at   INTEGER NOT NULL,
    created_by   TEXT,
    keep_removed INTEGER,                   -- how long removed items are kept; NULL: as long as the collection
    shared       INTEGER NOT NULL DEFAULT 0 -- 1: the workspaces inside its workspace can read it
) STRICT;

-- Items of collections, and those that were removed or replaced.
CREATE TABLE collection_items (
    id         INTEGER PRIMARY KEY,
    collection TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    kind       TEXT    NOT NULL, -- data, artifact or promise
    category   TEXT,
    job_id     TEXT,             -- the job that has added it, or promises to
    workflow   INTEGER,          -- and its workflow, if the collection is not that workflow's own
    file_id    TEXT,             -- of an artifact
    created_at INTEGER NOT NULL,
    created_by TEXT,
    removed_at INTEGER,          -- NULL: it is there
    removed_by TEXT,
    data       BLOB    NOT NULL, -- any JSON value
    file       BLOB              -- of an artifact: size, hash and type of the file, as JSON
) STRICT;

-- Find an item by its name. Unique, so that a name stands for one item at a time.
CREATE UNIQUE INDEX collection_items_name
    ON collection_items (collection, name)
    WHERE removed_at IS NULL;

-- The history of a collection.
CREATE INDEX collection_items_removed
    ON collection_items (collection, id)
    WHERE removed_at IS NOT NULL;

-- Retention of removed items.
CREATE INDEX collection_items_removed_at
    ON collection_items (collection, removed_at)
    WHERE removed_at IS NOT NULL;

-- Whether an item keeps a finished job from being deleted.
CREATE INDEX collection_items_job
    ON collection_items (job_id)
    WHERE removed_at IS NULL AND job_id IS NOT NULL;

-- Whether an item keeps a finished workflow from being deleted.
CREATE INDEX collection_items_workflow
    ON collection_items (workflow)
    WHERE removed_at IS NULL AND workflow IS NOT NULL;

-- Whether an item keeps a file from being deleted.
CREATE INDEX collection_items_file
    ON collection_items (file_id)
    WHERE removed_at IS NULL AND file_id IS NOT NULL;

-- Files of each workspace. Their content is in the file store, in pieces (docs/adr/0013-files-in-pieces.md).
CREATE TABLE files (
    id           TEXT    PRIMARY KEY,
    tenant       TEXT    NOT NULL,
    state        TEXT    NOT NULL, -- uploading, complete, damaged, or doomed: its pieces are being deleted
    sha256       TEXT,             -- NULL: not known before the end of the upload
    size         INTEGER,          -- NULL: not known yet
    stored       INTEGER NOT NULL, -- how many bytes have arrived
    content_type TEXT    NOT NULL,
    filename     TEXT,
    created_at   INTEGER NOT NULL,
    created_by   TEXT,
    touched_at   INTEGER NOT NULL  -- when it was last used: a file that nothing refers to is deleted a day later
) STRICT;

-- Content is stored once for each workspace: an upload of the same bytes finds it.
CREATE UNIQUE INDEX files_hash
    ON files (tenant, sha256)
    WHERE state = 'complete';

-- Files that were not used for long.
CREATE INDEX files_touched
    ON files (touched_at);

-- The pieces of a file, called ID/PIECE in the store.
CREATE TABLE file_pieces (
    file   TEXT    NOT NULL,
    start  INTEGER NOT NULL, -- its place in the file, in bytes
    size   INTEGER NOT NULL,
    sha256 BLOB    NOT NULL,
    piece  TEXT    NOT NULL,
    PRIMARY KEY (file, start)
) STRICT, WITHOUT ROWID;

-- How many bytes the files of a workspace take in the store, unfinished and doomed ones too: the limit of a workspace
-- is checked with one row, which also makes concurrent uploads wait for each other.
CREATE TABLE file_usage (
    tenant TEXT    PRIMARY KEY,
    bytes  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- ====================================================================================================================
-- Tenancy
-- ====================================================================================================================

-- Tenants that an operator has configured: what they may do, as JSON. Others have no row. Their jobs are counted in
-- job_counts and queue_minutes.
CREATE TABLE tenants (
    id                TEXT    PRIMARY KEY,
    body              BLOB    NOT NULL,
    window_started_at INTEGER NOT NULL DEFAULT 0, -- of their last pushes, if these are limited
    window_used       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Access tokens, as JSON; of their secrets there are only hashes.
CREATE TABLE tokens (
    id           TEXT    PRIMARY KEY,
    body         BLOB    NOT NULL,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;

-- ====================================================================================================================
-- Insight
-- ====================================================================================================================

-- The work of each minute in a queue; the names /tenant/ID/QUEUE and /type/TYPE count that of a tenant and of a job
-- type. Waits and runs are counted in fifteen buckets (BUCKETS_US in storage/tally.py), so that a percentile is an
-- addition.
CREATE TABLE queue_minutes (
    queue     TEXT    NOT NULL,
    minute    INTEGER NOT NULL, -- minutes since the epoch
    enqueued  INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    waited    INTEGER NOT NULL, -- the sum of all waits
    ran       INTEGER NOT NULL, -- the sum of all runs
    waits_0   INTEGER NOT NULL DEFAULT 0,
    waits_1   INTEGER NOT NULL DEFAULT 0,
    waits_2   INTEGER NOT NULL DEFAULT 0,
    waits_3   INTEGER NOT NULL DEFAULT 0,
    waits_4   INTEGER NOT NULL DEFAULT 0,
    waits_5   INTEGER NOT NULL DEFAULT 0,
    waits_6   INTEGER NOT NULL DEFAULT 0,
    waits_7   INTEGER NOT NULL DEFAULT 0,
    waits_8   INTEGER NOT NULL DEFAULT 0,
    waits_9   INTEGER NOT NULL DEFAULT 0,
    waits_10  INTEGER NOT NULL DEFAULT 0,
    waits_11  INTEGER NOT NULL DEFAULT 0,
    waits_12  INTEGER NOT NULL DEFAULT 0,
    waits_13  INTEGER NOT NULL DEFAULT 0,
    waits_14  INTEGER NOT NULL DEFAULT 0,
    runs_0    INTEGER NOT NULL DEFAULT 0,
    runs_1    INTEGER NOT NULL DEFAULT 0,
    runs_2    INTEGER NOT NULL DEFAULT 0,
    runs_3    INTEGER NOT NULL DEFAULT 0,
    runs_4    INTEGER NOT NULL DEFAULT 0,
    runs_5    INTEGER NOT NULL DEFAULT 0,
    runs_6    INTEGER NOT NULL DEFAULT 0,
    runs_7    INTEGER NOT NULL DEFAULT 0,
    runs_8    INTEGER NOT NULL DEFAULT 0,
    runs_9    INTEGER NOT NULL DEFAULT 0,
    runs_10   INTEGER NOT NULL DEFAULT 0,
    runs_11   INTEGER NOT NULL DEFAULT 0,
    runs_12   INTEGER NOT NULL DEFAULT 0,
    runs_13   INTEGER NOT NULL DEFAULT 0,
    runs_14   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, minute)
) STRICT, WITHOUT ROWID;

-- The same by the hour, from when the minutes are deleted, after two days.
CREATE TABLE queue_hours (
    queue     TEXT    NOT NULL,
    hour      INTEGER NOT NULL, -- hours since the epoch
    enqueued  INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    waited    INTEGER NOT NULL,
    ran       INTEGER NOT NULL,
    waits_0   INTEGER NOT NULL,
    waits_1   INTEGER NOT NULL,
    waits_2   INTEGER NOT NULL,
    waits_3   INTEGER NOT NULL,
    waits_4   INTEGER NOT NULL,
    waits_5   INTEGER NOT NULL,
    waits_6   INTEGER NOT NULL,
    waits_7   INTEGER NOT NULL,
    waits_8   INTEGER NOT NULL,
    waits_9   INTEGER NOT NULL,
    waits_10  INTEGER NOT NULL,
    waits_11  INTEGER NOT NULL,
    waits_12  INTEGER NOT NULL,
    waits_13  INTEGER NOT NULL,
    waits_14  INTEGER NOT NULL,
    runs_0    INTEGER NOT NULL DEFAULT 0,
    runs_1    INTEGER NOT NULL DEFAULT 0,
    runs_2    INTEGER NOT NULL DEFAULT 0,
    runs_3    INTEGER NOT NULL DEFAULT 0,
    runs_4    INTEGER NOT NULL DEFAULT 0,
    runs_5    INTEGER NOT NULL DEFAULT 0,
    runs_6    INTEGER NOT NULL DEFAULT 0,
    runs_7    INTEGER NOT NULL DEFAULT 0,
    runs_8    INTEGER NOT NULL DEFAULT 0,
    runs_9    INTEGER NOT NULL DEFAULT 0,
    runs_10   INTEGER NOT NULL DEFAULT 0,
    runs_11   INTEGER NOT NULL DEFAULT 0,
    runs_12   INTEGER NOT NULL DEFAULT 0,
    runs_13   INTEGER NOT NULL DEFAULT 0,
    runs_14   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, hour)
) STRICT, WITHOUT ROWID;

-- How jobs with a subject have ended: of each task the last success, the last failure, and the last few runs. They
-- outlive the jobs.
CREATE TABLE task_runs (
    id          INTEGER PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    type        TEXT    NOT NULL,
    subject     TEXT    NOT NULL,
    context     TEXT    NOT NULL,
    outcome     TEXT    NOT NULL,
    job_id      TEXT    NOT NULL,
    workflow_id TEXT,
    finished_at INTEGER NOT NULL,
    duration    INTEGER NOT NULL,
    waited      INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    inputs      BLOB, -- the hash of its inputs, if they are to be compared
    result      BLOB,
    error       BLOB
) STRICT;

-- The runs of a task, newest first.
CREATE INDEX task_runs_task
    ON task_runs (tenant, type, subject, context, id);

-- Retention.
CREATE INDEX task_runs_finished
    ON task_runs (finished_at);

-- The numbers of all runs of a task, also of those that are no longer in task_runs.
CREATE TABLE task_statistics (
    tenant          TEXT    NOT NULL,
    type            TEXT    NOT NULL,
    subject         TEXT    NOT NULL,
    context         TEXT    NOT NULL,
    successes       INTEGER NOT NULL,
    failures        INTEGER NOT NULL,
    errors          INTEGER NOT NULL,
    skipped         INTEGER NOT NULL,
    ran             INTEGER NOT NULL, -- the sum of all runs
    shortest        INTEGER,
    longest         INTEGER,
    last_success_at INTEGER,
    last_failure_at INTEGER,
    changed_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant, type, subject, context)
) STRICT, WITHOUT ROWID;

-- Retention.
CREATE INDEX task_statistics_changed
    ON task_statistics (changed_at);

-- The hash of the inputs of a job, from when it was handed out until its run is recorded: lookups resolve only then.
CREATE TABLE job_inputs (
    seq    INTEGER PRIMARY KEY, -- of the job
    inputs BLOB    NOT NULL
) STRICT;

-- ====================================================================================================================
-- Audit
-- ====================================================================================================================

-- Who did what. The hash of an entry covers its body and the hash of the entry before it, so that a change shows; the
-- columns repeat the body for queries, and a check compares them with it.
CREATE TABLE audit_log (
    seq       INTEGER PRIMARY KEY, -- without gaps: a missing entry shows
    at        INTEGER NOT NULL,
    event     TEXT    NOT NULL,
    principal TEXT    NOT NULL,
    tenant    TEXT,
    operation TEXT    NOT NULL,
    object    TEXT    NOT NULL,
    outcome   TEXT    NOT NULL,
    body      BLOB    NOT NULL,    -- the entry as JSON, as it was hashed
    hash      BLOB    NOT NULL
) STRICT;

-- The entries about an object, newest first. Many have none.
CREATE INDEX audit_log_object
    ON audit_log (object, seq)
    WHERE object <> '';

-- The entries of a caller, newest first.
CREATE INDEX audit_log_principal
    ON audit_log (principal, seq);
