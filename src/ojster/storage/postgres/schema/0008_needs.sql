-- What a job needs of its worker, as a key (ojster.fleet.requirements), and what a worker can do, a JSON object: which versions
-- of jobs it handles, and what it provides for jobs that need something. Workers say so again with every heartbeat.
ALTER TABLE jobs ADD COLUMN needs TEXT COLLATE "C";
ALTER TABLE workers DROP COLUMN handlers;
ALTER TABLE workers ADD COLUMN abilities TEXT COLLATE "C";

DROP INDEX jobs_available;
CREATE INDEX jobs_available ON jobs (queue, tenant, priority DESC, seq)
    WHERE state = 'available' AND limit_key IS NULL AND needs IS NULL;
CREATE INDEX jobs_needing ON jobs (queue, tenant, needs, priority DESC, seq)
    WHERE state = 'available' AND needs IS NOT NULL;
CREATE INDEX jobs_needing_active ON jobs (queue, needs) WHERE state = 'active' AND needs IS NOT NULL;
