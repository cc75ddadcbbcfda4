-- The version of a job, as a number, and the versions that a worker can handle (a JSON array), if it says so.
ALTER TABLE jobs ADD COLUMN version INTEGER;
ALTER TABLE workers ADD COLUMN handlers TEXT;
