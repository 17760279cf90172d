-- What Postgres must say differently.

-- name: has_schema_migrations
-- to_regclass looks along the search path, where a custom schema is.
SELECT 1 WHERE to_regclass('dl_schema_migrations') IS NOT NULL;

-- name: heads
-- The heads of the given tables, in one statement and so at one instant.
SELECT h.table_id, h.current_version FROM unnest(:table_ids::text[]::uuid[]) AS wanted(table_id)
JOIN dl_table_heads AS h ON h.table_id = wanted.table_id;

-- name: live_among
-- Which of the given paths have a live file, with what the commit needs to account for them. The
-- lateral subquery is an order: look each path up, instead of looking through the paths for each
-- live file; the expression around removed_version leaves only the index on paths to do it with. The
-- subquery hides how many paths there are, for which a prepared statement would be planned each time.
SELECT f.path, f.dv_id, f.size_bytes
FROM unnest((SELECT :paths::text[])) AS wanted(path)
CROSS JOIN LATERAL (
    SELECT path, dv_id, size_bytes FROM dl_active_files
    WHERE table_id = :table_id AND path = wanted.path
      AND removed_version + 0 = 9223372036854775807
    OFFSET 0
) AS f;

-- name: close_files
-- End the interval of a live file. Sent once for each, without waiting for the answers.
UPDATE dl_active_files SET removed_version = :version
WHERE table_id = :table_id AND path = :path AND dv_id = :dv_id
  AND removed_version + 0 = 9223372036854775807;

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

-- name: queue_for_head
-- Wait until it is this transaction's turn to take the head. Whoever waits for a row is woken with all
-- the others and waits again, each time that it changes; this lock wakes one, in the order they came.
SELECT pg_advisory_xact_lock(:lock::int, hashtext(:table_id::text));

-- name: share_head
-- The newest version, which nobody moves until the transaction ends; others may hold it so too.
SELECT current_version FROM dl_table_heads WHERE table_id = :table_id FOR SHARE;

-- name: take_turn
-- Whether a turn is this transaction's now. Whatever is recorded in a turn can be found out again, so
-- its commit need not wait for the disk.
SELECT pg_try_advisory_xact_lock(:lock::int, hashtext(:name)),
       set_config('synchronous_commit', 'off', true);

-- name: limit_waiting
-- How long this transaction waits for a lock.
SELECT set_config('lock_timeout', :limit, true);

-- name: await_turn
-- Wait until nobody has a turn. Any number may wait so, and all of them go on at once.
SELECT pg_advisory_xact_lock_shared(:lock::int, hashtext(:name));

-- name: removed_among
-- Which of the given paths were removed after :version. Lateral for the same reason as live_among.
SELECT r.version, r.path, r.data_change
FROM unnest(:paths::text[]) AS wanted(path)
CROSS JOIN LATERAL (
    SELECT version, path, data_change FROM dl_remove_files
    WHERE table_id = :table_id AND path = wanted.path AND version > :version
    OFFSET 0
) AS r;

-- name: create_incoming_keys
-- Keys come by COPY: thousands of single updates would take as many round trips.
CREATE TEMPORARY TABLE dl_incoming_keys (
    key1_width INTEGER, key1_low BIGINT, key1_high BIGINT,
    key2_width INTEGER, key2_low BIGINT, key2_high BIGINT,
    key3_width INTEGER, key3_low BIGINT, key3_high BIGINT,
    table_id UUID, path TEXT, dv_id TEXT, removed_version BIGINT
) ON COMMIT DROP;

-- name: write_keys
-- The lateral subquery is an order: look each key up, instead of looking through the keys for each
-- file. Nobody knows how many there are, as nobody has analysed the temporary table.
UPDATE dl_active_files AS f
SET key1_width = k.key1_width, key1_low = k.key1_low, key1_high = k.key1_high,
    key2_width = k.key2_width, key2_low = k.key2_low, key2_high = k.key2_high,
    key3_width = k.key3_width, key3_low = k.key3_low, key3_high = k.key3_high
FROM dl_incoming_keys AS k
CROSS JOIN LATERAL (
    SELECT ctid AS place FROM dl_active_files
    WHERE table_id = k.table_id AND path = k.path AND dv_id = k.dv_id
      AND removed_version = k.removed_version
    OFFSET 0
) AS found
WHERE f.ctid = found.place;

-- name: rights
-- What this role may do with the catalog of the search path, by what each of roles.sql needs; NULL
-- where there is no catalog that it can see. Then whether those roles exist, and the owner.
SELECT
    current_user::text,
    has_table_privilege(versions.oid, 'SELECT'),
    has_table_privilege(versions.oid, 'INSERT'),
    has_column_privilege(queue.oid, 'status', 'UPDATE')
        AND has_table_privilege(leases.oid, 'INSERT'),
    pg_has_role(versions.relowner, 'USAGE'),
    EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'deltalakedb_writer'),
    pg_get_userbyid(versions.relowner)::text
FROM (SELECT 1) AS one
LEFT JOIN pg_class AS versions ON versions.oid = to_regclass('dl_table_versions')
LEFT JOIN pg_class AS queue ON queue.oid = to_regclass('dl_mirror_status')
LEFT JOIN pg_class AS leases ON leases.oid = to_regclass('dl_mirror_tables');

-- name: server
-- Which release answers, and its clock in milliseconds since the epoch.
SELECT current_setting('server_version'), (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: clock
-- The server's clock in milliseconds since the epoch.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: browse_contention
-- As elsewhere; but the operators of JSON fail where it has a NUL anywhere, so its text is looked at. A quote
-- inside of a string has a backslash before it, which does not fit.
SELECT version, substring(CAST(commit_info AS TEXT) FROM '"readVersion": *([0-9]{1,18})[,} ]')
FROM dl_table_versions ORDER BY committed_at DESC LIMIT :limit;

-- name: backend_is_working
-- Whether a backend of this role is busy with a statement; no row where it is gone. One that has
-- waited for its client for so long has lost it, and what it has locked is locked for nobody.
SELECT state IS NULL OR state NOT LIKE 'idle%',
    CASE WHEN state LIKE 'idle%' AND usename = current_user
        AND state_change <= clock_timestamp() - make_interval(secs => :seconds::float8)
        THEN pg_terminate_backend(pid) END
FROM pg_stat_activity WHERE pid = :backend;

-- name: page_texts
-- Texts of groups of files: one walk along the primary key, of neighbours for the most part.
SELECT group_id, paths, CASE WHEN :with_stats = 1 THEN stats END FROM dl_page_texts
WHERE table_id = :table_id AND group_id = ANY (('{' || :groups || '}')::bigint[]);
