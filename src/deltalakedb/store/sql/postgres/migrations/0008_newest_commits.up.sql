-- The commits of all tables by time, for whoever searches who changed what. Commit times only grow, so a commit adds
-- its entry at the end; and they grow strictly within a table, so the two columns are a key to page by.
CREATE INDEX dl_table_versions_newest ON dl_table_versions (committed_at, table_id);
