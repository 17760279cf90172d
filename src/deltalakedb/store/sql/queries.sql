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

-- name: read_setting
SELECT value FROM dl_settings WHERE key = :key;

-- name: add_setting
-- Of two that set it first, the later one changes nothing.
INSERT INTO dl_settings (key, value, updated_at) VALUES (:key, :value, :updated_at)
ON CONFLICT (key) DO NOTHING;

-- name: write_setting
INSERT INTO dl_settings (key, value, updated_at) VALUES (:key, :value, :updated_at)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;

-- name: delete_setting
DELETE FROM dl_settings WHERE key = :key;

-- name: table_by_name
SELECT table_id, name, location, protocol_min_reader, protocol_min_writer, properties,
       created_at, updated_at, plan, allowed_roots
FROM dl_tables WHERE name = :name;

-- name: table_by_location
SELECT table_id, name, location, protocol_min_reader, protocol_min_writer, properties,
       created_at, updated_at, plan, allowed_roots
FROM dl_tables WHERE location = :location;

-- name: exported_by_id
SELECT table_id, name, location, version, exported_at
FROM dl_exported_tables WHERE table_id = :table_id;

-- name: newest_export
-- The last table of that name, or at that location, that has left the catalog.
SELECT table_id, name, location, version, exported_at
FROM dl_exported_tables WHERE name = :name OR location = :location
ORDER BY exported_at DESC, version DESC, table_id LIMIT 1;

-- name: table_by_id
SELECT table_id, name, location, protocol_min_reader, protocol_min_writer, properties,
       created_at, updated_at, plan, allowed_roots
FROM dl_tables WHERE table_id = :table_id;

-- name: all_tables
SELECT table_id, name, location, protocol_min_reader, protocol_min_writer, properties,
       created_at, updated_at, plan, allowed_roots
FROM dl_tables ORDER BY name;

-- name: table_names
SELECT name FROM dl_tables ORDER BY name;

-- name: update_table
-- The registry repeats the newest protocol and properties, so that listing tables reads no ledger.
UPDATE dl_tables
SET protocol_min_reader = :protocol_min_reader, protocol_min_writer = :protocol_min_writer,
    properties = :properties, updated_at = :updated_at, plan = :plan
WHERE table_id = :table_id;

-- name: head
SELECT current_version FROM dl_table_heads WHERE table_id = :table_id;

-- name: advance_head
-- The compare-and-set that decides who wins: it changes one row, or none when another was faster.
UPDATE dl_table_heads SET current_version = :version
WHERE table_id = :table_id AND current_version = :expected;

-- name: take_head
-- Move the head on, after waiting for whoever holds it: one wait, where a compare-and-set that loses
-- would have to wait again. The version tells whether others came in between.
UPDATE dl_table_heads SET current_version = current_version + 1
WHERE table_id = :table_id RETURNING current_version;

-- name: take_sound_head
-- As take_head; no row where the log of the table holds commits that are not from here.
UPDATE dl_table_heads SET current_version = current_version + 1
WHERE table_id = :table_id
  AND NOT EXISTS (SELECT 1 FROM dl_mirror_tables AS m
                  WHERE m.table_id = :table_id AND m.drift IS NOT NULL)
RETURNING current_version;

-- name: read_version
SELECT table_id, version, committed_at, committer, operation, operation_params,
       operation_metrics, commit_info, commit_uuid, transaction_id, num_actions, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, recorded_at
FROM dl_table_versions WHERE table_id = :table_id AND version = :version;

-- name: newest_time
-- The newest time that the catalog has recorded: of its newest commit, or of its last migration.
SELECT CASE WHEN committed_at > applied_at THEN committed_at ELSE applied_at END
FROM (SELECT coalesce(max(committed_at), 0) AS committed_at FROM dl_table_versions) AS commits
CROSS JOIN (SELECT coalesce(max(applied_at), 0) AS applied_at FROM dl_schema_migrations) AS made;

-- name: version_at_timestamp
-- The newest version that had been committed at :timestamp.
SELECT version FROM dl_table_versions
WHERE table_id = :table_id AND committed_at <= :timestamp
ORDER BY committed_at DESC LIMIT 1;

-- name: change_files_since
-- Change data of a version and of all later ones.
SELECT path FROM dl_cdc_files WHERE table_id = :table_id AND version >= :version;

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

-- name: share_head
-- The newest version, which nobody moves until the transaction ends; others may hold it so too. Here
-- the writer's lock holds it already.
SELECT current_version FROM dl_table_heads WHERE table_id = :table_id;

-- name: all_heads
-- The heads of all tables, in one statement and so at one instant.
SELECT table_id, current_version FROM dl_table_heads;

-- name: versions_after
-- The ledger rows of the commits that came after :version.
SELECT table_id, version, committed_at, committer, operation, operation_params,
       operation_metrics, commit_info, commit_uuid, transaction_id, num_actions, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, recorded_at
FROM dl_table_versions WHERE table_id = :table_id AND version > :version ORDER BY version;

-- name: commits_since
-- The commits after :version up to :last, without their actions: how many there are, how many do
-- anything but add files, how many have this UUID; whether the table has drifted; and the newest. No
-- row where there is none. The order of the rows leaves only the primary key to find them with.
SELECT s.commits, s.first_version, s.others, s.own,
       (SELECT count(*) FROM dl_mirror_tables AS m
        WHERE m.table_id = :table_id AND m.drift IS NOT NULL) AS drifts,
       n.version, n.committed_at, n.num_actions, n.num_adds, n.num_removes, n.bytes_added,
       n.bytes_removed, n.live_files, n.live_bytes
FROM (
    SELECT version, committed_at, num_actions, num_adds, num_removes, bytes_added, bytes_removed,
           live_files, live_bytes
    FROM dl_table_versions
    WHERE table_id = :table_id AND version > :version AND version <= :last
    ORDER BY version DESC LIMIT 1
) AS n
CROSS JOIN (
    SELECT count(*) AS commits, min(version) AS first_version,
           sum(CASE WHEN num_removes = 0
                     AND num_actions = num_adds + CASE WHEN commit_info IS NULL THEN 0 ELSE 1 END
                    THEN 0 ELSE 1 END) AS others,
           sum(CASE WHEN commit_uuid = :commit_uuid THEN 1 ELSE 0 END) AS own
    FROM (
        SELECT version, num_actions, num_adds, num_removes, commit_info, commit_uuid
        FROM dl_table_versions
        WHERE table_id = :table_id AND version > :version AND version <= :last
        ORDER BY version
    ) AS c
) AS s;

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

-- name: history
-- The newest commits first.
SELECT table_id, version, committed_at, committer, operation, operation_params,
       operation_metrics, commit_info, commit_uuid, transaction_id, num_actions, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, recorded_at
FROM dl_table_versions WHERE table_id = :table_id ORDER BY version DESC LIMIT :limit;

-- name: participants
-- Every version that one transaction over many tables wrote.
SELECT table_id, version FROM dl_table_versions WHERE transaction_id = :transaction_id;

-- name: open_version
-- All that opening a table needs, in one statement: its head, the ledger row of the wanted version
-- (:version, or the one that was newest at :timestamp, or the head), and the metaData and protocol
-- that hold there. Those two come along only where they are not the versions that the asker knows.
WITH wanted AS (
    SELECT current_version AS head,
           CASE WHEN CAST(:timestamp AS BIGINT) IS NOT NULL THEN (
                    SELECT version FROM dl_table_versions
                    WHERE table_id = :table_id AND committed_at <= CAST(:timestamp AS BIGINT)
                    ORDER BY committed_at DESC LIMIT 1)
                WHEN CAST(:version AS BIGINT) IS NOT NULL THEN CAST(:version AS BIGINT)
                ELSE current_version
           END AS version
    FROM dl_table_heads WHERE table_id = :table_id
), newest AS (
    SELECT (SELECT max(version) FROM dl_metadata_updates
            WHERE table_id = :table_id AND version <= (SELECT version FROM wanted)
           ) AS metadata_version,
           (SELECT max(version) FROM dl_protocol_updates
            WHERE table_id = :table_id AND version <= (SELECT version FROM wanted)
           ) AS protocol_version
)
SELECT wanted.head, v.version, v.committed_at,
       v.num_actions, v.num_adds, v.num_removes, v.bytes_added, v.bytes_removed, v.live_files,
       v.live_bytes, newest.metadata_version, newest.protocol_version,
       m.table_id, m.version, m.metadata_id, m.name, m.description, m.format_provider,
       m.format_options, m.schema_json, m.partition_columns, m.table_properties, m.created_time,
       m.extra,
       p.table_id, p.version, p.min_reader_version, p.min_writer_version, p.reader_features,
       p.writer_features, p.extra
FROM wanted CROSS JOIN newest
LEFT JOIN dl_table_versions AS v ON v.table_id = :table_id AND v.version = wanted.version
LEFT JOIN dl_metadata_updates AS m
  ON m.table_id = :table_id AND m.version = newest.metadata_version
     AND m.version <> CAST(:known_metadata AS BIGINT)
LEFT JOIN dl_protocol_updates AS p
  ON p.table_id = :table_id AND p.version = newest.protocol_version
     AND p.version <> CAST(:known_protocol AS BIGINT);

-- name: available_versions
-- The oldest and the newest version that the ledger still has, and when they were committed.
SELECT version, committed_at FROM dl_table_versions
WHERE table_id = :table_id AND version IN (
    (SELECT min(version) FROM dl_table_versions WHERE table_id = :table_id),
    (SELECT max(version) FROM dl_table_versions WHERE table_id = :table_id))
ORDER BY version;

-- name: app_transactions
-- The newest progress of every application at :version. The recursion goes from one application to
-- the next by the index: a stream has one, and may have recorded it a million times.
WITH RECURSIVE apps(app_id) AS (
    SELECT min(app_id) FROM dl_txn_actions WHERE table_id = :table_id
    UNION ALL
    SELECT (SELECT min(t.app_id) FROM dl_txn_actions AS t
            WHERE t.table_id = :table_id AND t.app_id > apps.app_id)
    FROM apps WHERE apps.app_id IS NOT NULL
)
SELECT apps.app_id, (
    SELECT t.txn_version FROM dl_txn_actions AS t
    WHERE t.table_id = :table_id AND t.app_id = apps.app_id AND t.version <= :version
    ORDER BY t.version DESC LIMIT 1)
FROM apps WHERE apps.app_id IS NOT NULL;

-- name: domains_at
-- The newest configuration of every metadata domain at :version; removed ones are hidden.
SELECT d.domain, d.configuration
FROM dl_domain_metadata AS d
JOIN (
    SELECT domain, max(version) AS version FROM dl_domain_metadata
    WHERE table_id = :table_id AND version <= :version GROUP BY domain
) AS newest ON newest.domain = d.domain AND newest.version = d.version
WHERE d.table_id = :table_id AND NOT d.removed;

-- name: has_path
-- Whether a path is live at :version. The expressions leave only the index on paths to look with.
SELECT 1 FROM dl_active_files
WHERE table_id = :table_id AND path = :path
  AND added_version + 0 <= :version AND removed_version + 0 > :version
LIMIT 1;

-- name: has_file
-- Whether a path with this deletion vector is live at :version.
SELECT 1 FROM dl_active_files
WHERE table_id = :table_id AND path = :path AND dv_id = :dv_id
  AND added_version + 0 <= :version AND removed_version + 0 > :version
LIMIT 1;

-- name: find_history
-- The newest commits first; what is not asked for is NULL, or as wide as time itself. The expressions
-- keep the planner on the key, in whose order it can stop: the index on times would have to be sorted.
SELECT table_id, version, committed_at, committer, operation, operation_params,
       operation_metrics, commit_info, commit_uuid, transaction_id, num_actions, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, recorded_at
FROM dl_table_versions
WHERE table_id = :table_id AND committed_at + 0 >= :since AND committed_at + 0 <= :until
  AND (CAST(:operation AS TEXT) IS NULL OR lower(operation) = lower(CAST(:operation AS TEXT)))
  AND (CAST(:committer AS TEXT) IS NULL OR lower(committer) = lower(CAST(:committer AS TEXT)))
ORDER BY version DESC LIMIT :limit;

-- name: plan
-- The planned columns that the keys of a table's files were made by.
SELECT plan FROM dl_tables WHERE table_id = :table_id;

-- name: set_plan
UPDATE dl_tables SET plan = :plan WHERE table_id = :table_id;

-- name: set_allowed_roots
UPDATE dl_tables SET allowed_roots = :allowed_roots WHERE table_id = :table_id;

-- name: files_to_plan
-- A page of files, live or not, with what their keys are made of.
SELECT path, dv_id, removed_version, stats, partition_values
FROM dl_active_files
WHERE table_id = :table_id
  AND (path, dv_id, removed_version) > (:path, :dv_id, :removed_version)
ORDER BY path, dv_id, removed_version LIMIT :limit;

-- name: write_keys
UPDATE dl_active_files
SET key1_width = :key1_width, key1_low = :key1_low, key1_high = :key1_high,
    key2_width = :key2_width, key2_low = :key2_low, key2_high = :key2_high,
    key3_width = :key3_width, key3_low = :key3_low, key3_high = :key3_high
WHERE table_id = :table_id AND path = :path AND dv_id = :dv_id
  AND removed_version = :removed_version;

-- name: pages_at
-- The pages that serve a version; the version up to which there are pages; and the newest versions
-- at or before :version at which pages began and ended. One statement, and so one state.
SELECT p.files, CASE WHEN :with_stats = 1 THEN p.stats END, p.removed, t.version,
       (SELECT max(q.valid_from) FROM dl_file_pages AS q
        WHERE q.table_id = :table_id AND q.valid_from <= :version),
       (SELECT max(q.valid_to) FROM dl_file_pages AS q
        WHERE q.table_id = :table_id AND q.valid_to <= :version)
FROM dl_paged_tables AS t
JOIN dl_file_pages AS p ON p.table_id = t.table_id
WHERE t.table_id = :table_id AND p.valid_to > :version AND p.valid_from <= :version;

-- name: page_list_at
-- As pages_at, without the files: those are fetched page by page.
SELECT p.page_id, p.num_files, p.removed, t.version,
       (SELECT max(q.valid_from) FROM dl_file_pages AS q
        WHERE q.table_id = :table_id AND q.valid_from <= :version),
       (SELECT max(q.valid_to) FROM dl_file_pages AS q
        WHERE q.table_id = :table_id AND q.valid_to <= :version)
FROM dl_paged_tables AS t
JOIN dl_file_pages AS p ON p.table_id = t.table_id
WHERE t.table_id = :table_id AND p.valid_to > :version AND p.valid_from <= :version
ORDER BY p.page_id;

-- name: pages_between
SELECT page_id, files, CASE WHEN :with_stats = 1 THEN stats END FROM dl_file_pages
WHERE table_id = :table_id AND page_id >= :first AND page_id <= :last
  AND valid_to > :version AND valid_from <= :version;

-- name: page_bounds
-- The bounds of a column in the pages that serve a version, from a number to another; NULL where no file of
-- the page can match. Keys of another type have another order. The expressions keep the planner on the index
-- of the pages that serve a version.
SELECT c.page_id, c.type,
       CASE WHEN c.type <> :type OR
                 (c.low IS NULL OR c.low <= :highest) AND (c.high IS NULL OR c.high >= :lowest)
            THEN c.bounds END
FROM dl_page_columns AS c
JOIN dl_file_pages AS p ON p.table_id = c.table_id AND p.page_id = c.page_id
WHERE c.table_id = :table_id AND c.column_key = :column_key
  AND p.page_id + 0 >= :first AND p.page_id + 0 <= :last
  AND p.valid_to > :version AND p.valid_from <= :version;

-- name: paged_table
-- The newest version that pages were built for, the number of the next page, and whether there are any
-- pages: version 0 without pages is a table whose pages were deleted.
SELECT version, next_page,
       EXISTS (SELECT 1 FROM dl_file_pages AS p WHERE p.table_id = :table_id)
FROM dl_paged_tables WHERE table_id = :table_id;

-- name: open_pages
-- The pages that serve the newest versions.
SELECT page_id, num_files, files, stats, removed FROM dl_file_pages
WHERE table_id = :table_id AND valid_to = 9223372036854775807
ORDER BY page_id;

-- name: move_paged_table
-- A compare-and-set, so that of two that make pages one gives up.
UPDATE dl_paged_tables SET version = :version, next_page = :next_page
WHERE table_id = :table_id AND version = :expected AND next_page = :expected_page;

-- name: close_page
UPDATE dl_file_pages SET valid_to = :version WHERE table_id = :table_id AND page_id = :page_id;

-- name: update_page
UPDATE dl_file_pages SET removed = :removed WHERE table_id = :table_id AND page_id = :page_id;

-- name: changes_since
-- How many files were added and removed after a version.
SELECT coalesce(sum(num_adds + num_removes), 0) FROM dl_table_versions
WHERE table_id = :table_id AND version > :version;

-- name: changes_by_version
SELECT version, num_adds + num_removes, live_files FROM dl_table_versions
WHERE table_id = :table_id AND version > :version ORDER BY version;

-- name: forget_page_columns
DELETE FROM dl_page_columns WHERE table_id = :table_id;

-- name: forget_page_texts
DELETE FROM dl_page_texts WHERE table_id = :table_id AND group_id >= :first AND group_id <= :last;

-- name: forget_pages
DELETE FROM dl_file_pages WHERE table_id = :table_id;

-- name: forget_paged_table
-- The row stays: a number is never used for a second page, and a build that has begun gives up.
UPDATE dl_paged_tables SET version = 0, next_page = next_page + 1 WHERE table_id = :table_id;

-- name: mirror_backlog
-- What is still to be published of a table, oldest first. A large payload is fetched by itself.
SELECT m.version, m.attempts, m.digest, m.payload_bytes,
       CASE WHEN m.payload_bytes <= 100000 THEN m.payload END, m.next_attempt_at, m.created_at,
       t.drift IS NOT NULL
FROM dl_mirror_status AS m
LEFT JOIN dl_mirror_tables AS t ON t.table_id = m.table_id
WHERE m.table_id = :table_id AND m.status <> 'SUCCEEDED'
ORDER BY m.version LIMIT :limit;

-- name: mirror_payload
SELECT payload FROM dl_mirror_status
WHERE table_id = :table_id AND version = :version AND status <> 'SUCCEEDED';

-- name: mark_published
-- Their commit files are there, with these bytes: nobody needs the payload any more.
UPDATE dl_mirror_status
SET status = 'SUCCEEDED', attempts = attempts + 1, last_error = NULL, error_kind = NULL,
    payload = NULL, next_attempt_at = 0, updated_at = :now
WHERE table_id = :table_id AND version >= :first AND version <= :last AND status <> 'SUCCEEDED';

-- name: mark_failed
UPDATE dl_mirror_status
SET status = 'FAILED', attempts = attempts + 1, last_error = :error, error_kind = :kind,
    next_attempt_at = :next_attempt_at, updated_at = :now
WHERE table_id = :table_id AND version = :version AND status <> 'SUCCEEDED';

-- name: retry_table
-- Forget how long to wait, and what was found in the log.
UPDATE dl_mirror_status SET next_attempt_at = 0, updated_at = :now
WHERE table_id = :table_id AND status <> 'SUCCEEDED' AND next_attempt_at > 0;

-- name: mirror_work
-- The tables that have something to publish, those first that wait longest: until when they shall
-- wait, and whether somebody else tends them at :now. A lease beyond :latest is longer than any may be.
SELECT m.table_id, m.next_attempt_at, t.drift IS NOT NULL,
       coalesce(t.owner <> :owner AND t.expires_at > :now AND t.expires_at <= :latest, false)
FROM (SELECT table_id, min(version) AS version FROM dl_mirror_status
      WHERE status <> 'SUCCEEDED' GROUP BY table_id) AS oldest
JOIN dl_mirror_status AS m ON m.table_id = oldest.table_id AND m.version = oldest.version
LEFT JOIN dl_mirror_tables AS t ON t.table_id = m.table_id
ORDER BY m.created_at, m.table_id;

-- name: mirror_neglected
-- The tables whose last worker died (its lease is over, and was not given back), or could not finish
-- checkpoint, checksum or clean-up, with no try since :before. A try in the future was none.
SELECT m.table_id FROM dl_mirror_tables AS m
JOIN dl_tables AS t ON t.table_id = m.table_id
WHERE m.drift IS NULL AND (m.expires_at <= :now OR m.expires_at > :latest)
  AND (m.owner IS NOT NULL
       OR (m.checkpoint_error IS NOT NULL AND (m.updated_at <= :before OR m.updated_at > :now)))
ORDER BY m.updated_at, m.table_id;

-- name: mirror_newest
-- The newest version whose commit file is there.
SELECT version FROM dl_mirror_status
WHERE table_id = :table_id AND status = 'SUCCEEDED'
ORDER BY version DESC LIMIT 1;

-- name: mirror_backlog_size
SELECT count(*) FROM dl_mirror_status WHERE table_id = :table_id AND status <> 'SUCCEEDED';

-- name: mirror_overview
-- Every table with what the mirror still has to do for it.
SELECT t.table_id, t.name, t.location, h.current_version,
       coalesce(b.backlog, 0), coalesce(b.bytes, 0), b.oldest,
       s.status, s.attempts, s.last_error, s.error_kind, s.next_attempt_at, s.created_at,
       m.owner, m.generation, m.expires_at, m.checkpoint_version, m.checkpoint_error, m.drift
FROM dl_tables AS t
JOIN dl_table_heads AS h ON h.table_id = t.table_id
LEFT JOIN (SELECT table_id, count(*) AS backlog, sum(payload_bytes) AS bytes,
                  min(version) AS oldest
           FROM dl_mirror_status WHERE status <> 'SUCCEEDED' GROUP BY table_id) AS b
  ON b.table_id = t.table_id
LEFT JOIN dl_mirror_status AS s ON s.table_id = t.table_id AND s.version = b.oldest
LEFT JOIN dl_mirror_tables AS m ON m.table_id = t.table_id
ORDER BY t.name;

-- name: mirror_table
SELECT owner, generation, expires_at, checkpoint_version, checkpoint_error, cleaned_at, drift
FROM dl_mirror_tables WHERE table_id = :table_id;

-- name: begin_mirror_table
-- The first one to tend a table makes its row; one that has left the catalog gets none.
INSERT INTO dl_mirror_tables (table_id, generation, expires_at, cleaned_at, updated_at)
SELECT table_id, 0, 0, 0, :now FROM dl_table_heads WHERE table_id = :table_id
ON CONFLICT (table_id) DO NOTHING;

-- name: take_lease
-- A lease that is free, expired or one's own; one beyond :latest came from a wrong clock.
UPDATE dl_mirror_tables
SET owner = :owner, generation = generation + 1, expires_at = :expires_at, updated_at = :now
WHERE table_id = :table_id
  AND (owner IS NULL OR owner = :owner OR expires_at <= :now OR expires_at > :latest)
RETURNING generation;

-- name: break_lease
-- The next one may have it; the owner stays, so that it is known that he did not give it back.
UPDATE dl_mirror_tables SET expires_at = 0, updated_at = :now
WHERE table_id = :table_id AND owner IS NOT NULL;

-- name: renew_lease
UPDATE dl_mirror_tables SET expires_at = :expires_at, updated_at = :now
WHERE table_id = :table_id AND owner = :owner AND generation = :generation;

-- name: release_lease
UPDATE dl_mirror_tables SET owner = NULL, expires_at = 0, updated_at = :now
WHERE table_id = :table_id AND owner = :owner AND generation = :generation;

-- name: set_drift
UPDATE dl_mirror_tables SET drift = :drift, updated_at = :now WHERE table_id = :table_id;

-- name: note_checkpoint
-- The newest checkpoint only: one that was late does not take its place.
UPDATE dl_mirror_tables
SET checkpoint_version = CASE WHEN coalesce(checkpoint_version, -1) < :version THEN :version
                              ELSE checkpoint_version END,
    updated_at = :now
WHERE table_id = :table_id;

-- name: note_upkeep
UPDATE dl_mirror_tables SET checkpoint_error = :error, updated_at = :now
WHERE table_id = :table_id;

-- name: note_cleaned
UPDATE dl_mirror_tables SET cleaned_at = :now, updated_at = :now WHERE table_id = :table_id;

-- name: mirror_state
-- Whether a version is published, waits or has failed.
SELECT status FROM dl_mirror_status WHERE table_id = :table_id AND version = :version;

-- name: txns_at
-- The newest action of every application at :version, found as in app_transactions.
WITH RECURSIVE apps(app_id) AS (
    SELECT min(app_id) FROM dl_txn_actions WHERE table_id = :table_id
    UNION ALL
    SELECT (SELECT min(t.app_id) FROM dl_txn_actions AS t
            WHERE t.table_id = :table_id AND t.app_id > apps.app_id)
    FROM apps WHERE apps.app_id IS NOT NULL
)
SELECT t.table_id, t.version, t.app_id, t.txn_version, t.last_update, t.extra
FROM apps
JOIN dl_txn_actions AS t
  ON t.table_id = :table_id AND t.app_id = apps.app_id AND t.version = (
      SELECT max(newest.version) FROM dl_txn_actions AS newest
      WHERE newest.table_id = :table_id AND newest.app_id = apps.app_id
        AND newest.version <= :version)
ORDER BY t.app_id;

-- name: removes_between
-- How many files were removed, whether they came back or not. The removes that expired versions have
-- left behind are counted one by one.
SELECT (SELECT coalesce(sum(num_removes), 0) FROM dl_table_versions
        WHERE table_id = :table_id AND version > :since AND version <= :version)
     + (SELECT count(*) FROM dl_remove_files
        WHERE table_id = :table_id AND version > :since AND version < (
            SELECT min(version) FROM dl_table_versions WHERE table_id = :table_id));
