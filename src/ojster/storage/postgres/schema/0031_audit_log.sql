-- Who did what. The hash of an entry covers its body and the hash of the entry before it.
CREATE TABLE audit_log (
    seq       BIGINT PRIMARY KEY,
    at        BIGINT NOT NULL,
    event     TEXT COLLATE "C" NOT NULL,
    principal TEXT COLLATE "C" NOT NULL,
    tenant    TEXT COLLATE "C",
    operation TEXT COLLATE "C" NOT NULL,
    object    TEXT COLLATE "C" NOT NULL,
    outcome   TEXT COLLATE "C" NOT NULL,
    body      BYTEA NOT NULL,
    hash      BYTEA NOT NULL
);
CREATE INDEX audit_log_object ON audit_log (object, seq) WHERE object <> '';
CREATE INDEX audit_log_principal ON audit_log (principal, seq);
