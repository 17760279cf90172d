-- Pages: the files that were live at a version, many to a page, as Arrow (IPC, compressed). They never
-- say more than dl_active_files does; a listing that reads a few pages instead of a row for each file
-- is several times as fast. A page serves the versions from valid_from up to, not including, valid_to.
-- Its files are those that were live at valid_from; removed has the version that removed each of them,
-- as far as that is known at the version in dl_paged_tables, and is NULL while all of them are live.

CREATE TABLE dl_file_pages (
    table_id   UUID NOT NULL,
    page_id    BIGINT NOT NULL CHECK (page_id >= 0),
    valid_from BIGINT NOT NULL CHECK (valid_from >= 0),
    valid_to   BIGINT NOT NULL CHECK (valid_to > valid_from),
    num_files  BIGINT NOT NULL CHECK (num_files >= 0),
    files      BYTEA NOT NULL,
    removed    BYTEA,
    PRIMARY KEY (table_id, page_id)
);
CREATE INDEX dl_file_pages_validity ON dl_file_pages (table_id, valid_to, valid_from);
-- They are compressed already.
ALTER TABLE dl_file_pages ALTER COLUMN files SET STORAGE EXTERNAL;
ALTER TABLE dl_file_pages ALTER COLUMN removed SET STORAGE EXTERNAL;

-- Up to which version the files of a table are in pages, and the number of its next page.
CREATE TABLE dl_paged_tables (
    table_id  UUID NOT NULL PRIMARY KEY,
    version   BIGINT NOT NULL CHECK (version >= 0),
    next_page BIGINT NOT NULL CHECK (next_page >= 0)
);
