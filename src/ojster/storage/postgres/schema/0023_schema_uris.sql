-- The URI under which a schema was registered, if it is not the one that its type and version give.
ALTER TABLE schemas ADD COLUMN uri TEXT COLLATE "C";
