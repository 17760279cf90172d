DROP TABLE dl_exported_tables;
