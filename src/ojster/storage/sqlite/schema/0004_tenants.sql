-- Whose a job is; '' is nobody's. Claims look at the jobs of one tenant in one queue.
ALTER TABLE jobs ADD COLUMN tenant TEXT NOT NULL DEFAULT '';

DROP INDEX jobs_available;
CREATE INDEX jobs_available ON jobs (queue, tenant, priority DESC, seq) WHERE state = 'available' AND limit_key IS NULL;
DROP INDEX jobs_limited;
CREATE INDEX jobs_limited ON jobs (queue, tenant, limit_key, priority DESC, seq)
    WHERE state = 'available' AND limit_key IS NOT NULL;
CREATE INDEX jobs_tenant ON jobs (tenant, seq) WHERE tenant <> '';
CREATE INDEX jobs_tenants ON jobs (queue, tenant) WHERE state = 'available' AND tenant <> '';

ALTER TABLE workflows ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
CREATE INDEX workflows_tenant ON workflows (tenant, seq) WHERE tenant <> '';

-- What tenants may do; a JSON object for each that an operator has configured. How many jobs they have stands in
-- job_counts, and what they do in queue_minutes, under the names /tenant/ID/QUEUE.
CREATE TABLE tenants (
    id                TEXT PRIMARY KEY,
    body              BLOB NOT NULL,
    window_started_at INTEGER NOT NULL DEFAULT 0, -- in which its last pushes were, if they are limited
    window_used       INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
