-- What DuckDB must say differently: lists are passed as JSON text.

-- name: has_schema_migrations
SELECT 1 FROM duckdb_tables()
WHERE database_name = current_database() AND table_name = 'dl_schema_migrations';

-- name: live_among
-- Which of the given paths have a live file, with what the commit needs to account for them.
SELECT f.path, f.dv_id, f.size_bytes
FROM (SELECT unnest(from_json(:paths, '["VARCHAR"]')) AS path) AS wanted
JOIN dl_active_files AS f
  ON f.table_id = :table_id AND f.path = wanted.path AND f.removed_version = 9223372036854775807;

-- name: close_files
-- End the interval of live files, given as parallel lists.
UPDATE dl_active_files AS f SET removed_version = :version
FROM (SELECT unnest(from_json(:paths, '["VARCHAR"]')) AS path, unnest(from_json(:dv_ids, '["VARCHAR"]')) AS dv_id) AS gone
WHERE f.table_id = :table_id AND f.path = gone.path AND f.dv_id = gone.dv_id
  AND f.removed_version = 9223372036854775807;

-- name: removed_among
-- Which of the given paths were removed after :version.
SELECT r.version, r.path, r.data_change
FROM (SELECT unnest(from_json(:paths, '["VARCHAR"]')) AS path) AS wanted
JOIN dl_remove_files AS r
  ON r.table_id = :table_id AND r.path = wanted.path AND r.version > :version;
