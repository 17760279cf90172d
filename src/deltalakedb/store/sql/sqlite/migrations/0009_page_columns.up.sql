-- Bounds of columns beside the pages, so that a condition on any column is a comparison of Arrow columns.
-- A row has the bounds of one column in each file of one page (Arrow IPC, compressed), and of the whole
-- page as order keys, NULL where unknown. The statistics as JSON text get a batch of their own: a condition
-- needs them of few files. Pages of an older release have neither; then the text is parsed.

ALTER TABLE dl_file_pages ADD COLUMN stats BLOB;

CREATE TABLE dl_page_columns (
    table_id   TEXT NOT NULL,
    column_key TEXT NOT NULL,
    page_id    INTEGER NOT NULL CHECK (page_id >= 0),
    type       TEXT NOT NULL,
    low        INTEGER,
    high       INTEGER,
    bounds     BLOB NOT NULL,
    PRIMARY KEY (table_id, column_key, page_id)
) STRICT;
