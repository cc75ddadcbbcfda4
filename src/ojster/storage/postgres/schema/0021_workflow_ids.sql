-- The id of a workflow may be any short text, as its creator chooses.
ALTER TABLE workflows
    ALTER COLUMN id TYPE TEXT COLLATE "C" USING CAST(id AS text),
    ALTER COLUMN next_attempt TYPE TEXT COLLATE "C" USING CAST(next_attempt AS text);
