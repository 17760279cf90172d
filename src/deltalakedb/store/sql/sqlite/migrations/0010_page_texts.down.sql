DROP TABLE dl_page_texts;
DELETE FROM dl_page_columns WHERE column_key = '["files"]';
