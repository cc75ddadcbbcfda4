-- How long a collection keeps removed items, in microseconds (NULL: as long as the collection), and whether the
-- workspaces inside its workspace can read it.
ALTER TABLE collections ADD COLUMN keep_removed INTEGER;
ALTER TABLE collections ADD COLUMN shared INTEGER NOT NULL DEFAULT 0;
CREATE INDEX collection_items_removed_at ON collection_items (collection, removed_at) WHERE removed_at IS NOT NULL;
