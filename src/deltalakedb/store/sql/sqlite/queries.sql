-- What SQLite must say differently: lists are JSON text, booleans are 0 and 1.

-- name: has_schema_migrations
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'dl_schema_migrations';

-- name: heads
-- The heads of the given tables, in one statement and so at one instant.
SELECT h.table_id, h.current_version FROM json_each(:table_ids) AS wanted
CROSS JOIN dl_table_heads AS h ON h.table_id = wanted.value;

-- name: live_among
-- Which of the given paths have a live file, with what the commit needs to account for them.
-- The expression around removed_version keeps the planner from reading all live files for each
-- path: with equalities on both indexes and no statistics yet, it may choose the wrong one.
SELECT f.path, f.dv_id, f.size_bytes
FROM json_each(:paths) AS wanted
CROSS JOIN dl_active_files AS f
  ON f.table_id = :table_id AND f.path = wanted.value AND +f.removed_version = 9223372036854775807;

-- name: close_files
-- End the interval of live files, given as a list of pairs. The inner CROSS JOIN is an order: look
-- each pair up, instead of looking through the pairs for each live file.
UPDATE dl_active_files SET removed_version = :version
WHERE rowid IN (
    SELECT f.rowid
    FROM json_each(:keys) AS gone
    CROSS JOIN dl_active_files AS f
      ON f.table_id = :table_id AND f.path = json_extract(gone.value, '$[0]')
         AND f.dv_id = json_extract(gone.value, '$[1]')
         AND +f.removed_version = 9223372036854775807
);

-- name: removed_among
-- Which of the given paths were removed after :version.
SELECT r.version, r.path, r.data_change
FROM json_each(:paths) AS wanted
CROSS JOIN dl_remove_files AS r
  ON r.table_id = :table_id AND r.path = wanted.value AND +r.version > :version;

-- name: server
-- Which release answers, and its clock in milliseconds since the epoch.
SELECT sqlite_version(), CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER);

-- name: page_texts
-- Texts of groups of files. CROSS JOIN is an order: look each group up.
SELECT t.group_id, t.paths, CASE WHEN :with_stats = 1 THEN t.stats END
FROM json_each('[' || :groups || ']') AS wanted
CROSS JOIN dl_page_texts AS t ON t.table_id = :table_id AND t.group_id = wanted.value;
