-- What is there of an import that goes on in stages. Its ledger rows are under an id that no table of
-- the registry has, and none of its versions is in dl_table_versions: nobody sees them. The last
-- transaction of the import takes these rows away and registers the table.

CREATE TABLE dl_import_stages (
    table_id     UUID NOT NULL,
    stage        BIGINT NOT NULL CHECK (stage >= 0),
    location     TEXT NOT NULL,
    next_version BIGINT NOT NULL CHECK (next_version >= 0),
    fingerprint  TEXT NOT NULL,
    commits      BYTEA NOT NULL,
    created_at   BIGINT NOT NULL CHECK (created_at >= 0),
    PRIMARY KEY (table_id, stage),
    UNIQUE (location, stage) -- of two that import one location, one finds its stage taken
);
