ALTER TABLE dl_tables DROP COLUMN allowed_roots;
