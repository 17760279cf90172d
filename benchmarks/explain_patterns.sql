-- The queries that explain_patterns.py explains. `index` must appear in the plan; `none` means that no
-- index may. :big and :small are table ids, :head and :small_head their newest versions.

-- section: 1. Latest version
-- title: Head
-- index: dl_table_heads_pkey
SELECT current_version FROM dl_table_heads WHERE table_id = :big;

-- title: From the ledger
-- index: dl_table_versions_pkey
-- remark: The primary key, scanned backwards: an index on `version DESC` could do no better.
SELECT version FROM dl_table_versions
WHERE table_id = :big ORDER BY version DESC LIMIT 1;

-- section: 2. Active files
-- title: In the form of the requirements
-- index: none
-- remark: The table is a third of all rows, so both relations are read whole, joined and sorted.
SELECT af.path, af.size_bytes FROM dl_add_files AS af
WHERE af.table_id = :big AND NOT EXISTS (
  SELECT 1 FROM dl_remove_files AS rf
  WHERE rf.table_id = af.table_id AND rf.path = af.path AND rf.version > af.version)
ORDER BY af.path;

-- title: The same, for one of the smaller tables
-- index: dl_remove_files_path
SELECT af.path, af.size_bytes FROM dl_add_files AS af
WHERE af.table_id = :small AND NOT EXISTS (
  SELECT 1 FROM dl_remove_files AS rf
  WHERE rf.table_id = af.table_id AND rf.path = af.path AND rf.version > af.version)
ORDER BY af.path;

-- title: Ours
-- index: dl_active_files_interval
SELECT path, size_bytes FROM dl_active_files
WHERE table_id = :big AND added_version <= :head AND removed_version > :head;

-- title: Ours, for one of the smaller tables
-- index: dl_active_files_interval
SELECT path, size_bytes FROM dl_active_files
WHERE table_id = :small AND added_version <= :small_head AND removed_version > :small_head;

-- section: 3. Time travel by version
-- title: In the form of the requirements
-- index: none
-- remark: Both relations are read whole. Beware: this form loses a file that was removed and added again.
SELECT af.path, af.size_bytes FROM dl_add_files AS af
LEFT JOIN dl_remove_files AS rf
  ON af.table_id = rf.table_id AND af.path = rf.path AND rf.version <= :old
WHERE af.table_id = :big AND af.version <= :old AND rf.table_id IS NULL
ORDER BY af.path;

-- title: The same, for one of the smaller tables
-- index: dl_add_files_pkey
SELECT af.path, af.size_bytes FROM dl_add_files AS af
LEFT JOIN dl_remove_files AS rf
  ON af.table_id = rf.table_id AND af.path = rf.path AND rf.version <= :small_old
WHERE af.table_id = :small AND af.version <= :small_old AND rf.table_id IS NULL
ORDER BY af.path;

-- title: Ours, to half of the history
-- index: dl_active_files_interval
SELECT path, size_bytes FROM dl_active_files
WHERE table_id = :big AND added_version <= :old AND removed_version > :old;

-- title: Ours, to an early version
-- index: dl_active_files_interval
-- remark: All that was removed after version 50 is in the range: the index is walked, but only rows that match are fetched.
SELECT path, size_bytes FROM dl_active_files
WHERE table_id = :big AND added_version <= 50 AND removed_version > 50;

-- section: 4. Time travel by timestamp
-- title: In the form of the requirements
-- index: dl_table_versions_committed_at
WITH target AS (
  SELECT version FROM dl_table_versions
  WHERE table_id = :big AND committed_at <= :when
  ORDER BY committed_at DESC LIMIT 1)
SELECT af.path, af.size_bytes FROM dl_add_files AS af
CROSS JOIN target AS tv
LEFT JOIN dl_remove_files AS rf
  ON af.table_id = rf.table_id AND af.path = rf.path AND rf.version <= tv.version
WHERE af.table_id = :big AND af.version <= tv.version AND rf.table_id IS NULL
ORDER BY af.path;

-- title: Ours: the version first, then the listing above
-- index: dl_table_versions_committed_at
-- remark: Scanned backwards.
SELECT version FROM dl_table_versions
WHERE table_id = :big AND committed_at <= :when
ORDER BY committed_at DESC LIMIT 1;

-- section: 5. Filtering by statistics
-- title: A range, over the JSON of the files of the snapshot
-- index: dl_active_files_interval
-- remark: The index finds the snapshot; each document is then parsed. A GIN index does not help: see below.
SELECT path, size_bytes FROM dl_active_files
WHERE table_id = :big AND added_version <= :head AND removed_version > :head
  AND (stats::jsonb #>> '{maxValues,id}')::bigint >= 500000
  AND (stats::jsonb #>> '{minValues,id}')::bigint <= 500999;

-- section: 6. Partition pruning
-- title: In the form of the requirements
-- index: dl_add_files_partition_values
SELECT path, size_bytes FROM dl_add_files AS af
WHERE table_id = :big AND partition_values @> '{"year": "2021", "month": "3"}'
  AND NOT EXISTS (
    SELECT 1 FROM dl_remove_files AS rf
    WHERE rf.table_id = :big AND rf.path = af.path AND rf.version > af.version);

-- title: Ours
-- index: dl_active_files_interval
-- remark: The index finds the snapshot; the partition is compared row by row.
SELECT path, size_bytes FROM dl_active_files
WHERE table_id = :big AND added_version <= :head AND removed_version > :head
  AND partition_values ->> 'year' = '2021' AND partition_values ->> 'month' = '3';

-- section: 7. Optimistic concurrency
-- title: The compare-and-set of a commit
-- index: dl_table_heads_pkey
UPDATE dl_table_heads SET current_version = :head + 1
WHERE table_id = :big AND current_version = :head;

-- section: Further lookups
-- title: The newest add of a path
-- index: dl_add_files_path
SELECT version, size_bytes FROM dl_add_files
WHERE table_id = :big AND path = :live_path ORDER BY version DESC LIMIT 1;

-- title: Whether a path was removed
-- index: dl_remove_files_path
SELECT version FROM dl_remove_files
WHERE table_id = :big AND path = :removed_path ORDER BY version DESC LIMIT 1;

-- title: Which of some paths are live (every commit that removes asks this)
-- index: dl_active_files_pkey
SELECT path, dv_id, size_bytes FROM dl_active_files
WHERE table_id = :big AND path IN (:live_path, :removed_path)
  AND removed_version = 9223372036854775807;

-- title: Files that later commits added (the conflict check)
-- index: dl_add_files_pkey
SELECT version, path, data_change FROM dl_add_files
WHERE table_id = :big AND version > :head - 3;

-- title: Metadata at a version
-- index: dl_metadata_updates_pkey
SELECT schema_json FROM dl_metadata_updates
WHERE table_id = :big AND version <= :old ORDER BY version DESC LIMIT 1;

-- title: Progress of an application that never wrote here
-- index: dl_txn_actions_app
SELECT txn_version, version FROM dl_txn_actions
WHERE table_id = :big AND app_id = 'unknown' ORDER BY version DESC LIMIT 1;

-- title: The versions of one multi-table transaction
-- index: dl_table_versions_transaction
SELECT table_id, version FROM dl_table_versions WHERE transaction_id = :transaction;

-- title: What is still to be published
-- index: dl_mirror_status_backlog
SELECT table_id, version, attempts FROM dl_mirror_status
WHERE status <> 'SUCCEEDED' ORDER BY table_id, version;
