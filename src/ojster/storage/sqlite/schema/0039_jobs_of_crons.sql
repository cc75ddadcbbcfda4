-- All jobs of a cron job, also finished ones: its last runs. With the number of the job, although each index has it: SQLite
-- takes the narrower of two indexes, and must take jobs_cron to look for jobs that overlap.
CREATE INDEX jobs_of_cron ON jobs (cron_name, seq) WHERE cron_name IS NOT NULL;
