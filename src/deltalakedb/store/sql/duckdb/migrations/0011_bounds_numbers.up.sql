-- A number for each row of dl_page_columns. DuckDB looks rows up by an index of one column only; a scan that compares
-- the key can read all bounds of a vector (2,048 rows), of which a condition needs few. Rows are copied, because
-- DuckDB makes no index for rows that the same transaction has changed.

CREATE SEQUENCE dl_page_columns_ids;
CREATE TABLE dl_page_columns_numbered (
    table_id   UUID NOT NULL,
    column_key VARCHAR NOT NULL,
    page_id    BIGINT NOT NULL CHECK (page_id >= 0),
    type       VARCHAR NOT NULL,
    low        BIGINT,
    high       BIGINT,
    bounds     BLOB NOT NULL,
    bounds_id  BIGINT NOT NULL DEFAULT nextval('dl_page_columns_ids') UNIQUE,
    PRIMARY KEY (table_id, column_key, page_id)
);
INSERT INTO dl_page_columns_numbered (table_id, column_key, page_id, type, low, high, bounds)
SELECT table_id, column_key, page_id, type, low, high, bounds FROM dl_page_columns;
DROP TABLE dl_page_columns;
ALTER TABLE dl_page_columns_numbered RENAME TO dl_page_columns;
