-- Paths and statistics (LZ4) of pages in groups of eight files, so that a condition which few files match
-- reads those instead of whole pages. Only pages that serve the newest versions have them.
-- Pages of an older release have none until they are built again, and are decoded.

-- As it is, DuckDB reads a value in its place; compressed once more, all values of a vector.
CREATE TABLE dl_page_texts (
    table_id UUID NOT NULL,
    group_id BIGINT NOT NULL CHECK (group_id >= 0),
    paths    BLOB NOT NULL USING COMPRESSION uncompressed,
    stats    BLOB NOT NULL USING COMPRESSION uncompressed
);
