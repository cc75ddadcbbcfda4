-- All jobs of a cron job, also finished ones: its last runs. The index of unfinished jobs is in the same order, or
-- PostgreSQL would take the larger one to look for jobs that overlap, because that saves the sorting.
CREATE INDEX CONCURRENTLY jobs_of_cron ON jobs (cron_name, seq) WHERE cron_name IS NOT NULL;
DROP INDEX CONCURRENTLY jobs_cron;
CREATE INDEX CONCURRENTLY jobs_cron ON jobs (cron_name, seq) WHERE cron_name IS NOT NULL AND finished_at IS NULL;
