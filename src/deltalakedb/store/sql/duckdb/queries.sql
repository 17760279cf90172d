-- What DuckDB must say differently: lists are passed as JSON text.

-- name: has_schema_migrations
SELECT 1 FROM duckdb_tables()
WHERE database_name = current_database() AND table_name = 'dl_schema_migrations';

-- name: heads
-- The heads of the given tables, in one statement and so at one instant.
SELECT h.table_id, h.current_version FROM (SELECT unnest(from_json(:table_ids, '["UUID"]')) AS table_id) AS wanted
JOIN dl_table_heads AS h ON h.table_id = wanted.table_id;

-- name: all_heads
-- The heads of all tables, in one statement and so at one instant. As text: the driver needs four
-- times as long to make a UUID.
SELECT CAST(table_id AS VARCHAR), current_version FROM dl_table_heads;

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

-- name: app_transactions
-- The newest progress of every application at :version; there is no index to go along.
SELECT app_id, arg_max(txn_version, version) FROM dl_txn_actions
WHERE table_id = :table_id AND version <= :version GROUP BY app_id;

-- name: open_ledger
-- The first part of open_version: in pieces it is faster here, where asking costs no round trip.
SELECT version, committed_at, num_actions, num_adds, num_removes, bytes_added, bytes_removed,
       live_files, live_bytes
FROM dl_table_versions WHERE table_id = :table_id AND version = :version;

-- name: newest_updates
-- Which metaData and which protocol hold at :version.
SELECT 'metadata' AS kind, max(version) FROM dl_metadata_updates
WHERE table_id = :table_id AND version <= :version
UNION ALL
SELECT 'protocol', max(version) FROM dl_protocol_updates
WHERE table_id = :table_id AND version <= :version;

-- name: write_keys
-- The keys come as a registered Arrow table: thousands of single updates would take minutes.
UPDATE dl_active_files AS f
SET key1_width = k.key1_width, key1_low = k.key1_low, key1_high = k.key1_high,
    key2_width = k.key2_width, key2_low = k.key2_low, key2_high = k.key2_high,
    key3_width = k.key3_width, key3_low = k.key3_low, key3_high = k.key3_high
FROM incoming_keys AS k
WHERE f.table_id = k.table_id::UUID AND f.path = k.path AND f.dv_id = k.dv_id
  AND f.removed_version = k.removed_version;

-- name: page_list_at
-- The pages that serve a version, and the version up to which there are pages. In any order: to ask
-- for one costs more than to sort them.
SELECT p.page_id, p.num_files, p.removed, t.version
FROM dl_paged_tables AS t, dl_file_pages AS p
WHERE t.table_id = :table_id AND p.table_id = :table_id
  AND p.valid_to > :version AND p.valid_from <= :version;

-- name: page_bounds
-- Where the bounds of a column are, in the pages that serve a version and in others between them: to leave
-- those out takes a join, which costs more than to read them.
SELECT page_id, type,
       CASE WHEN type <> :type OR
                 (low IS NULL OR low <= :highest) AND (high IS NULL OR high >= :lowest)
            THEN bounds_id END
FROM dl_page_columns
WHERE table_id = :table_id AND column_key = :column_key
  AND page_id >= :first AND page_id <= :last AND :version >= 0;

-- name: bounds
-- Looked up by the index, which more conditions would prevent; a longer list of numbers too.
SELECT bounds_id, bounds FROM dl_page_columns WHERE bounds_id IN (:numbers);

-- name: file_pages_between
-- As pages_between without statistics: a CASE would read them.
SELECT page_id, files, NULL FROM dl_file_pages
WHERE table_id = :table_id AND page_id >= :first AND page_id <= :last
  AND valid_to > :version AND valid_from <= :version;

-- name: page_texts
-- Texts of groups of files.
SELECT group_id, paths, stats FROM dl_page_texts
WHERE table_id = :table_id AND group_id IN (SELECT unnest(('[' || :groups || ']')::BIGINT[]));

-- name: page_paths
-- As page_texts without statistics: a CASE would read them.
SELECT group_id, paths FROM dl_page_texts
WHERE table_id = :table_id AND group_id IN (SELECT unnest(('[' || :groups || ']')::BIGINT[]));

-- name: page_marks
-- The newest versions at or before :version at which pages began and ended.
SELECT max(valid_from) FILTER (valid_from <= :version),
       max(valid_to) FILTER (valid_to <= :version)
FROM dl_file_pages WHERE table_id = :table_id;

-- name: txns_at
-- The newest action of every application at :version; there is no index to go along.
SELECT t.table_id, t.version, t.app_id, t.txn_version, t.last_update, t.extra
FROM dl_txn_actions AS t
JOIN (
    SELECT app_id, max(version) AS version FROM dl_txn_actions
    WHERE table_id = :table_id AND version <= :version GROUP BY app_id
) AS newest ON newest.app_id = t.app_id AND newest.version = t.version
WHERE t.table_id = :table_id
ORDER BY t.app_id;

-- name: server
-- Which release answers, and its clock in milliseconds since the epoch.
SELECT version(), epoch_ms(current_timestamp);

-- name: browse_versions_at
-- In one pass: there is no index to go along. Moments before which nothing was committed are left out.
SELECT committed_at - (committed_at - :first + :step) % :step + :step AS moment, max(version)
FROM dl_table_versions
WHERE table_id = :table_id AND committed_at >= :first - :step AND committed_at < :last
GROUP BY moment ORDER BY moment;
