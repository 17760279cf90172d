DROP INDEX dl_active_files_interval;
CREATE INDEX dl_active_files_interval ON dl_active_files
    (table_id, removed_version, added_version);
