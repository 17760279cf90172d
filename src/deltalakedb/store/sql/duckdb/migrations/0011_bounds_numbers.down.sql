CREATE TABLE dl_page_columns_plain (
    table_id   UUID NOT NULL,
    column_key VARCHAR NOT NULL,
    page_id    BIGINT NOT NULL CHECK (page_id >= 0),
    type       VARCHAR NOT NULL,
    low        BIGINT,
    high       BIGINT,
    bounds     BLOB NOT NULL,
    PRIMARY KEY (table_id, column_key, page_id)
);
INSERT INTO dl_page_columns_plain
SELECT table_id, column_key, page_id, type, low, high, bounds FROM dl_page_columns;
DROP TABLE dl_page_columns;
DROP SEQUENCE dl_page_columns_ids;
ALTER TABLE dl_page_columns_plain RENAME TO dl_page_columns;
