-- Queries that mean and read the same on every engine. Parameters are written :name.

-- name: create_schema_migrations
-- The record of what was applied to this catalog.
CREATE TABLE IF NOT EXISTS dl_schema_migrations (
    version    INTEGER NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    applied_at BIGINT  NOT NULL
);

-- name: read_schema_migrations
SELECT version, name, checksum, applied_at FROM dl_schema_migrations ORDER BY version;

-- name: record_migration
INSERT INTO dl_schema_migrations (version, name, checksum, applied_at)
VALUES (:version, :name, :checksum, :applied_at);

-- name: forget_migration
DELETE FROM dl_schema_migrations WHERE version = :version;

-- name: table_by_name
SELECT table_id, name, location, protocol_min_reader, protocol_min_writer, properties,
       created_at, updated_at
FROM dl_tables WHERE name = :name;

-- name: table_by_location
SELECT table_id, name, location, protocol_min_reader, protocol_min_writer, properties,
       created_at, updated_at
FROM dl_tables WHERE location = :location;

-- name: table_by_id
SELECT table_id, name, location, protocol_min_reader, protocol_min_writer, properties,
       created_at, updated_at
FROM dl_tables WHERE table_id = :table_id;

-- name: all_tables
SELECT table_id, name, location, protocol_min_reader, protocol_min_writer, properties,
       created_at, updated_at
FROM dl_tables ORDER BY name;

-- name: update_table
-- The registry repeats the newest protocol and properties, so that listing tables reads no ledger.
UPDATE dl_tables
SET protocol_min_reader = :protocol_min_reader, protocol_min_writer = :protocol_min_writer,
    properties = :properties, updated_at = :updated_at
WHERE table_id = :table_id;

-- name: head
SELECT current_version FROM dl_table_heads WHERE table_id = :table_id;

-- name: advance_head
-- The compare-and-set that decides who wins: it changes one row, or none when another was faster.
UPDATE dl_table_heads SET current_version = :version
WHERE table_id = :table_id AND current_version = :expected;

-- name: read_version
SELECT table_id, version, committed_at, committer, operation, operation_params,
       operation_metrics, commit_info, commit_uuid, transaction_id, num_actions, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, recorded_at
FROM dl_table_versions WHERE table_id = :table_id AND version = :version;

-- name: version_at_timestamp
-- The newest version that had been committed at :timestamp.
SELECT version FROM dl_table_versions
WHERE table_id = :table_id AND committed_at <= :timestamp
ORDER BY committed_at DESC LIMIT 1;

-- name: delete_active_files
DELETE FROM dl_active_files WHERE table_id = :table_id;

-- name: rebuild_active_files
INSERT INTO dl_active_files (
    table_id, path, dv_id, added_version, removed_version, size_bytes, modification_time,
    data_change, partition_values, stats, tags, deletion_vector, base_row_id,
    default_row_commit_version, clustering_provider, extra)
SELECT table_id, path, dv_id, added_version, removed_version, size_bytes, modification_time,
       data_change, partition_values, stats, tags, deletion_vector, base_row_id,
       default_row_commit_version, clustering_provider, extra
FROM vw_ledger_intervals WHERE table_id = :table_id;

-- name: compare_active_files
-- Intervals of the ledger that dl_active_files lacks ('missing'), and rows it has beyond them
-- ('extra').
WITH expected AS (
    SELECT path, dv_id, added_version, removed_version, size_bytes, modification_time,
           data_change, partition_values, stats, tags, deletion_vector, base_row_id,
           default_row_commit_version, clustering_provider, extra
    FROM vw_ledger_intervals WHERE table_id = :table_id
), kept AS (
    SELECT path, dv_id, added_version, removed_version, size_bytes, modification_time,
           data_change, partition_values, stats, tags, deletion_vector, base_row_id,
           default_row_commit_version, clustering_provider, extra
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
-- The newest version, held until the transaction ends. Here the writer's lock holds it already.
SELECT current_version FROM dl_table_heads WHERE table_id = :table_id;

-- name: versions_after
-- The ledger rows of the commits that came after :version.
SELECT table_id, version, committed_at, committer, operation, operation_params,
       operation_metrics, commit_info, commit_uuid, transaction_id, num_actions, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, recorded_at
FROM dl_table_versions WHERE table_id = :table_id AND version > :version ORDER BY version;

-- name: adds_after
-- What a conflict check looks at in the files that later commits added.
SELECT version, path, partition_values, data_change FROM dl_add_files
WHERE table_id = :table_id AND version > :version;

-- name: removes_after
-- What a conflict check looks at in the files that later commits removed.
SELECT version, path, data_change FROM dl_remove_files
WHERE table_id = :table_id AND version > :version;

-- name: newest_app_txn
-- The newest progress that an application has recorded, and in which version.
SELECT txn_version, version FROM dl_txn_actions
WHERE table_id = :table_id AND app_id = :app_id
ORDER BY version DESC LIMIT 1;

-- name: version_of_commit
-- Whether a commit whose acknowledgement was lost has happened.
SELECT version FROM dl_table_versions
WHERE table_id = :table_id AND version > :version AND commit_uuid = :commit_uuid;

-- name: rename_table
UPDATE dl_tables SET name = :name, updated_at = :updated_at WHERE table_id = :table_id;

-- name: newest_domain
-- The newest action of a metadata domain at :version.
SELECT table_id, version, domain, configuration, removed, extra FROM dl_domain_metadata
WHERE table_id = :table_id AND domain = :domain AND version <= :version
ORDER BY version DESC LIMIT 1;

-- name: all_heads
-- The head of every table, in one statement and so at one instant.
SELECT table_id, current_version FROM dl_table_heads;

-- name: history
-- The newest commits first.
SELECT table_id, version, committed_at, committer, operation, operation_params,
       operation_metrics, commit_info, commit_uuid, transaction_id, num_actions, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, recorded_at
FROM dl_table_versions WHERE table_id = :table_id ORDER BY version DESC LIMIT :limit;

-- name: participants
-- Every version that one transaction over many tables wrote.
SELECT table_id, version FROM dl_table_versions WHERE transaction_id = :transaction_id;

-- name: files_at
-- The live files of a version: one range predicate for the head and for every older version.
SELECT path, dv_id, added_version, size_bytes, modification_time, partition_values, stats,
       deletion_vector
FROM dl_active_files
WHERE table_id = :table_id AND added_version <= :version AND removed_version > :version
ORDER BY path, dv_id;
