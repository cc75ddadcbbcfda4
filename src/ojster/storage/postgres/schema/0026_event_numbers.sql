-- The events may be lost in a crash; their numbers may not. The sequence of an identity column of an unlogged table is
-- unlogged, too, and a standby that takes over soon after it was made cannot read it.
ALTER TABLE event_batches ALTER COLUMN seq DROP IDENTITY;
CREATE SEQUENCE event_numbers AS BIGINT;
SELECT setval('event_numbers', (SELECT coalesce(max(seq), 0) + 1 FROM event_batches), false);
ALTER TABLE event_batches ALTER COLUMN seq SET DEFAULT nextval('event_numbers');
