-- Paths and statistics (LZ4) of pages in groups of eight files, so that a condition which few files match
-- reads those instead of whole pages. Only pages that serve the newest versions have them.
-- Pages of an older release have none until they are built again, and are decoded.

CREATE TABLE dl_page_texts (
    table_id TEXT NOT NULL,
    group_id INTEGER NOT NULL CHECK (group_id >= 0),
    paths    BLOB NOT NULL,
    stats    BLOB NOT NULL,
    PRIMARY KEY (table_id, group_id)
) STRICT;
