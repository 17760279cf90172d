-- What Postgres must say differently.

-- name: has_schema_migrations
-- to_regclass looks along the search path, where a custom schema is.
SELECT 1 WHERE to_regclass('dl_schema_migrations') IS NOT NULL;

-- name: live_among
-- Which of the given paths have a live file, with what the commit needs to account for them.
-- The expression around removed_version keeps the planner from reading all live files for each
-- path: with equalities on both indexes and no statistics yet, it may choose the wrong one.
SELECT f.path, f.dv_id, f.size_bytes
FROM unnest(:paths::text[]) AS wanted(path)
JOIN dl_active_files AS f
  ON f.table_id = :table_id AND f.path = wanted.path AND f.removed_version + 0 = 9223372036854775807;

-- name: close_files
-- End the interval of live files, given as parallel lists.
UPDATE dl_active_files AS f SET removed_version = :version
FROM unnest(:paths::text[], :dv_ids::text[]) AS gone(path, dv_id)
WHERE f.table_id = :table_id AND f.path = gone.path AND f.dv_id = gone.dv_id
  AND f.removed_version + 0 = 9223372036854775807;

-- name: compare_active_files
-- Intervals of the ledger that dl_active_files lacks ('missing'), and rows it has beyond them
-- ('extra'). JSON is compared as JSONB: how it is spelled does not matter.
WITH expected AS (
    SELECT path, dv_id, added_version, removed_version, size_bytes, modification_time,
           data_change, partition_values::jsonb AS partition_values, stats, tags::jsonb AS tags,
           deletion_vector::text AS deletion_vector, base_row_id, default_row_commit_version,
           clustering_provider, extra::text AS extra
    FROM vw_ledger_intervals WHERE table_id = :table_id
), kept AS (
    SELECT path, dv_id, added_version, removed_version, size_bytes, modification_time,
           data_change, partition_values::jsonb AS partition_values, stats, tags::jsonb AS tags,
           deletion_vector::text AS deletion_vector, base_row_id, default_row_commit_version,
           clustering_provider, extra::text AS extra
    FROM dl_active_files WHERE table_id = :table_id
)
SELECT 'missing' AS problem, path, dv_id, added_version, removed_version
FROM (SELECT * FROM expected EXCEPT SELECT * FROM kept) AS missing
UNION ALL
SELECT 'extra', path, dv_id, added_version, removed_version
FROM (SELECT * FROM kept EXCEPT SELECT * FROM expected) AS extra
ORDER BY 2, 3, 4, 1
LIMIT :limit;

-- name: lock_head
-- The newest version, held until the transaction ends.
SELECT current_version FROM dl_table_heads WHERE table_id = :table_id FOR UPDATE;

-- name: removed_among
-- Which of the given paths were removed after :version.
SELECT r.version, r.path, r.data_change
FROM unnest(:paths::text[]) AS wanted(path)
JOIN dl_remove_files AS r
  ON r.table_id = :table_id AND r.path = wanted.path AND r.version > :version;
