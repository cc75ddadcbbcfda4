-- By how much somebody has raised or lowered the priority of a job since it was pushed; it is part of its priority.
ALTER TABLE jobs ADD COLUMN priority_adjustment BIGINT NOT NULL DEFAULT 0;
