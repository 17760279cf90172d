-- Planned columns: the bounds of up to three columns of a table, as keys in the order of their values,
-- beside each file. A condition on one of them finds its files without reading their statistics.
-- A file is in the class of the smallest even width with key_high - key_low < 2^width; so those that
-- overlap [a, b] begin, in each class, between a - 2^width and b.

ALTER TABLE dl_tables ADD COLUMN plan TEXT;

ALTER TABLE dl_active_files ADD COLUMN key1_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key1_low INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key1_high INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key2_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key2_low INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key2_high INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key3_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key3_low INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key3_high INTEGER;

CREATE INDEX dl_active_files_key1 ON dl_active_files (table_id, key1_width, key1_low)
    WHERE key1_width IS NOT NULL;
CREATE INDEX dl_active_files_key2 ON dl_active_files (table_id, key2_width, key2_low)
    WHERE key2_width IS NOT NULL;
CREATE INDEX dl_active_files_key3 ON dl_active_files (table_id, key3_width, key3_low)
    WHERE key3_width IS NOT NULL;
