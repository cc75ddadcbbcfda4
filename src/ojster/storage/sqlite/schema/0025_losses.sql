-- The number of attempts of a job that ended with the death of their worker.
ALTER TABLE jobs ADD COLUMN losses INTEGER NOT NULL DEFAULT 0;
