ALTER TABLE workflows ADD COLUMN created_by text;
ALTER TABLE workflows ADD COLUMN cancelled_by text;
