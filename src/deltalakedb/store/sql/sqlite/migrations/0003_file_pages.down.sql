DROP TABLE dl_paged_tables;
DROP TABLE dl_file_pages;
