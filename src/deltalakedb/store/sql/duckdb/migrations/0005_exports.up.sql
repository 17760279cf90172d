-- Tables that have left this catalog and are ordinary Delta tables now. Whoever still holds one, or asks
-- for it, is told so; and an export that is done again after its answer was lost finds its result.

CREATE TABLE dl_exported_tables (
    table_id    UUID    NOT NULL PRIMARY KEY,
    name        VARCHAR NOT NULL,
    location    VARCHAR NOT NULL,
    version     BIGINT  NOT NULL CHECK (version >= 0),
    exported_at BIGINT  NOT NULL CHECK (exported_at >= 0)
);
