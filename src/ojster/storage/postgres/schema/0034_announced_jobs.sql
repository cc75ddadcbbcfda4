-- How many jobs the elements of maps become that have no nodes yet: they count towards the limits of their tenant.
ALTER TABLE map_elements
    ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN jobs BIGINT NOT NULL DEFAULT 0;
CREATE INDEX map_elements_tenant ON map_elements (tenant, jobs) WHERE parked = 0 AND tenant <> '';
