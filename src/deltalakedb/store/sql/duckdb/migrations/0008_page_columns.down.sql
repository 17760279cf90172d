DROP TABLE dl_page_columns;
-- Pages without their statistics serve nobody; they are made again.
DELETE FROM dl_file_pages WHERE stats IS NOT NULL;
DELETE FROM dl_paged_tables WHERE table_id NOT IN (SELECT table_id FROM dl_file_pages);
ALTER TABLE dl_file_pages DROP COLUMN stats;
