-- Settings of the catalog itself, by name: the warehouse, below which tables without a location lie.

CREATE TABLE dl_settings (
    key        VARCHAR NOT NULL PRIMARY KEY,
    value      VARCHAR NOT NULL,
    updated_at BIGINT  NOT NULL CHECK (updated_at >= 0)
);
