DROP INDEX dl_table_versions_newest;
