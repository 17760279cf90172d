-- Bounds of columns beside the pages, so that a condition on any column is a comparison of Arrow columns.
-- A row has the bounds of one column in each file of one page (Arrow IPC, compressed), and of the whole
-- page as order keys, NULL where unknown. The statistics as JSON text get a batch of their own: a condition
-- needs them of few files. Pages of an older release have neither; then the text is parsed.

ALTER TABLE dl_file_pages ADD COLUMN stats BYTEA;

CREATE TABLE dl_page_columns (
    table_id   UUID NOT NULL,
    column_key TEXT NOT NULL,
    page_id    BIGINT NOT NULL CHECK (page_id >= 0),
    type       TEXT NOT NULL,
    low        BIGINT,
    high       BIGINT,
    bounds     BYTEA NOT NULL,
    PRIMARY KEY (table_id, column_key, page_id)
);
-- They are compressed already.
ALTER TABLE dl_file_pages ALTER COLUMN stats SET STORAGE EXTERNAL;
ALTER TABLE dl_page_columns ALTER COLUMN bounds SET STORAGE EXTERNAL;

-- Conditions on files were SQL over these; they are comparisons of Arrow columns now.
DROP FUNCTION dl_utc_text(TEXT);
DROP FUNCTION dl_stats_document(TEXT);
