-- How long a collection keeps removed items, in microseconds (NULL: as long as the collection), and whether the
-- workspaces inside its workspace can read it.
ALTER TABLE collections ADD COLUMN keep_removed BIGINT;
ALTER TABLE collections ADD COLUMN shared SMALLINT NOT NULL DEFAULT 0;
