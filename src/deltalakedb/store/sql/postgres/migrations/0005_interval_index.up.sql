-- Every removed_version is greater than 0, so this index has the same rows as before; but a query can
-- use it only where it compares removed_version with a number. A lookup of single files by their path
-- does not, and finds only the primary key to look with. Before, the planner could take this index for
-- it when its statistics knew nothing of the table yet, and read all files of the table for each path.
DROP INDEX dl_active_files_interval;
CREATE INDEX dl_active_files_interval ON dl_active_files
    (table_id, removed_version, added_version) WHERE removed_version > 0;
