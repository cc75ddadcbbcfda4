-- To which events of a job there are reactions (ojster.events.reaction_rules): the sum of their bits.
ALTER TABLE jobs ADD COLUMN reacts BIGINT NOT NULL DEFAULT 0;
