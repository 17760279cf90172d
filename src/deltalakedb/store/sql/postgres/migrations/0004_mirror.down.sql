ALTER TABLE dl_mirror_status DROP COLUMN error_kind;
DROP TABLE dl_mirror_tables;
