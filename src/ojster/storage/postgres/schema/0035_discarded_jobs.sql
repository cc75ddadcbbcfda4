-- The jobs that gave up, newest first: for failures in groups, and for the dead letters of the last hour.
CREATE INDEX CONCURRENTLY jobs_discarded ON jobs (dead, finished_at) WHERE state = 'discarded';
