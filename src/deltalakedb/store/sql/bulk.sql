-- Queries about a whole table, for taking over a history and making keys anew. The same on every
-- engine.

-- name: clear_keys
-- Take the keys from the files of a table that has no planned columns any more.
UPDATE dl_active_files
SET key1_width = NULL, key1_low = NULL, key1_high = NULL,
    key2_width = NULL, key2_low = NULL, key2_high = NULL,
    key3_width = NULL, key3_low = NULL, key3_high = NULL
WHERE table_id = :table_id AND key1_width IS NOT NULL;

-- name: interval_totals
-- How many files and bytes each kind of interval has: what was live at any version follows from it.
SELECT added_version, removed_version, count(*), sum(size_bytes) FROM dl_active_files
WHERE table_id = :table_id GROUP BY added_version, removed_version;

-- name: live_files_after
-- The live files in the order of their keys, from the one after (:path, :dv_id).
SELECT path, dv_id, size_bytes FROM dl_active_files
WHERE table_id = :table_id AND removed_version = 9223372036854775807
  AND (path, dv_id) > (:path, :dv_id)
ORDER BY path, dv_id LIMIT :limit;

-- name: first_version
-- The oldest version that the ledger has.
SELECT min(version) FROM dl_table_versions WHERE table_id = :table_id;

-- name: first_unpublished
-- The oldest version that is not in _delta_log yet.
SELECT min(version) FROM dl_mirror_status WHERE table_id = :table_id AND status <> 'SUCCEEDED';

-- name: has_version
SELECT 1 FROM dl_table_versions WHERE table_id = :table_id AND version = :version;

-- name: expire_page_columns
-- The bounds that belong to pages which expire.
DELETE FROM dl_page_columns WHERE table_id = :table_id AND page_id IN (
    SELECT p.page_id FROM dl_file_pages AS p
    WHERE p.table_id = :table_id AND p.valid_to <= :keep
);

-- name: expire_pages
-- Pages that serve no version from :keep on.
DELETE FROM dl_file_pages WHERE table_id = :table_id AND valid_to <= :keep;

-- name: recorded_commits
-- What the catalog has of the commit files of some versions, in their order.
SELECT m.version, m.status, m.digest, m.payload_bytes, v.committed_at, v.live_files, v.live_bytes
FROM dl_mirror_status AS m
JOIN dl_table_versions AS v ON v.table_id = m.table_id AND v.version = m.version
WHERE m.table_id = :table_id AND m.version >= :first AND m.version <= :last
ORDER BY m.version LIMIT :limit;

-- name: mirror_digest
SELECT digest FROM dl_mirror_status WHERE table_id = :table_id AND version = :version;

-- name: set_payload
-- The bytes to publish, made anew; those of a published version are not needed.
UPDATE dl_mirror_status SET payload = :payload, next_attempt_at = 0, updated_at = :now
WHERE table_id = :table_id AND version = :version AND status <> 'SUCCEEDED';

-- name: import_stages
-- What is there of an import that has not come to its end.
SELECT table_id, stage, location, next_version, fingerprint, commits, created_at
FROM dl_import_stages WHERE location = :location ORDER BY stage;

-- name: end_import
DELETE FROM dl_import_stages WHERE table_id = :table_id;
