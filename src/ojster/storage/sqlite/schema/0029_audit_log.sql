-- Who did what. The hash of an entry covers its body and the hash of the entry before it.
CREATE TABLE audit_log (
    seq       INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL,
    event     TEXT NOT NULL,
    principal TEXT NOT NULL,
    tenant    TEXT,
    operation TEXT NOT NULL,
    object    TEXT NOT NULL,
    outcome   TEXT NOT NULL,
    body      BLOB NOT NULL,
    hash      BLOB NOT NULL
) STRICT;
CREATE INDEX audit_log_object ON audit_log (object, seq) WHERE object <> '';
CREATE INDEX audit_log_principal ON audit_log (principal, seq);
