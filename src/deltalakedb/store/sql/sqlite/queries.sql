-- What SQLite must say differently: lists are JSON text, booleans are 0 and 1.

-- name: has_schema_migrations
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'dl_schema_migrations';

-- name: live_among
-- Which of the given paths have a live file, with what the commit needs to account for them.
-- The expression around removed_version keeps the planner from reading all live files for each
-- path: with equalities on both indexes and no statistics yet, it may choose the wrong one.
SELECT f.path, f.dv_id, f.size_bytes
FROM json_each(:paths) AS wanted
CROSS JOIN dl_active_files AS f
  ON f.table_id = :table_id AND f.path = wanted.value AND +f.removed_version = 9223372036854775807;

-- name: close_files
-- End the interval of live files, given as parallel lists.
UPDATE dl_active_files AS f SET removed_version = :version
FROM json_each(:paths) AS p
JOIN json_each(:dv_ids) AS d ON d.key = p.key
WHERE f.table_id = :table_id AND f.path = p.value AND f.dv_id = d.value
  AND +f.removed_version = 9223372036854775807;
