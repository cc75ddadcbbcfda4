-- Removed items of a collection by the time of their removal, for the retention of collections.
CREATE INDEX CONCURRENTLY collection_items_removed_at ON collection_items (collection, removed_at) WHERE removed_at IS NOT NULL;
