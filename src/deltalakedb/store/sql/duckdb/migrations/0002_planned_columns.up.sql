-- Planned columns: the bounds of up to three columns of a table, as keys in the order of their values,
-- beside each file. A condition on one of them finds its files without reading their statistics.
-- A file is in the class of the smallest even width with key_high - key_low < 2^width; so those that
-- overlap [a, b] begin, in each class, between a - 2^width and b.

ALTER TABLE dl_tables ADD COLUMN plan VARCHAR;

ALTER TABLE dl_active_files ADD COLUMN key1_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key1_low BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key1_high BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key2_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key2_low BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key2_high BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key3_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key3_low BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key3_high BIGINT;
