-- A number for each row of dl_page_columns, with an index. DuckDB looks rows up by an index of one column only. A
-- scan that compares the key can read all bounds of a vector (2,048 rows), of which a condition needs few.

CREATE SEQUENCE dl_page_columns_ids;
ALTER TABLE dl_page_columns ADD COLUMN bounds_id BIGINT DEFAULT nextval('dl_page_columns_ids');
CREATE UNIQUE INDEX dl_page_columns_bounds ON dl_page_columns (bounds_id);
