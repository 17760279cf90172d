DROP TABLE dl_import_stages;
