-- What the operations page asks. Every query is bounded, whatever the catalog holds: see store/browse.py.

-- name: browse_summary
-- How much there is: tables, versions, live files and bytes; what waits for the mirror, and since when.
SELECT held.tables, held.versions, held.live_files, held.live_bytes,
       waiting.backlog, waiting.tables_behind, waiting.since, drifted.tables
FROM (
    SELECT count(*) AS tables, coalesce(sum(v.version + 1), 0) AS versions,
           coalesce(sum(v.live_files), 0) AS live_files,
           coalesce(sum(v.live_bytes), 0) AS live_bytes
    FROM dl_table_heads AS h
    JOIN dl_table_versions AS v ON v.table_id = h.table_id AND v.version = h.current_version
) AS held
CROSS JOIN (
    SELECT count(*) AS backlog, count(DISTINCT table_id) AS tables_behind, min(created_at) AS since
    FROM dl_mirror_status WHERE status <> 'SUCCEEDED'
) AS waiting
CROSS JOIN (
    SELECT count(*) AS tables FROM dl_mirror_tables WHERE drift IS NOT NULL
) AS drifted;

-- name: browse_tables
-- A page of tables by name, each with its head and what the mirror still has to do for it: all, those
-- whose name fits a pattern, one by its name, or those only that the mirror is behind with.
WITH page AS (
    SELECT t.table_id, t.name, t.location
    FROM dl_tables AS t
    WHERE t.name > :after
      AND (CAST(:name AS TEXT) IS NULL OR t.name = CAST(:name AS TEXT))
      AND (CAST(:pattern AS TEXT) IS NULL
           OR lower(t.name) LIKE lower(CAST(:pattern AS TEXT)) ESCAPE '!')
      AND (CAST(:behind AS INTEGER) = 0
           OR EXISTS (SELECT 1 FROM dl_mirror_status AS w
                      WHERE w.table_id = t.table_id AND w.status <> 'SUCCEEDED')
           OR EXISTS (SELECT 1 FROM dl_mirror_tables AS w
                      WHERE w.table_id = t.table_id
                        AND (w.drift IS NOT NULL OR w.checkpoint_error IS NOT NULL)))
    ORDER BY t.name LIMIT :limit
), counted AS (
    SELECT page.table_id, page.name, page.location,
           (SELECT count(*) FROM dl_mirror_status AS w
            WHERE w.table_id = page.table_id AND w.status <> 'SUCCEEDED') AS backlog,
           (SELECT min(w.version) FROM dl_mirror_status AS w
            WHERE w.table_id = page.table_id AND w.status <> 'SUCCEEDED') AS oldest
    FROM page
)
SELECT c.table_id, c.name, c.location, h.current_version, v.committed_at, v.committer,
       v.operation, v.live_files, v.live_bytes, c.backlog, c.oldest, s.status, s.attempts,
       s.last_error, s.error_kind, s.next_attempt_at, s.created_at, m.owner, m.expires_at,
       m.checkpoint_version, m.checkpoint_error, m.drift
FROM counted AS c
JOIN dl_table_heads AS h ON h.table_id = c.table_id
LEFT JOIN dl_table_versions AS v ON v.table_id = c.table_id AND v.version = h.current_version
LEFT JOIN dl_mirror_status AS s ON s.table_id = c.table_id AND s.version = c.oldest
LEFT JOIN dl_mirror_tables AS m ON m.table_id = c.table_id
ORDER BY c.name;

-- name: browse_changes
-- A page of the commits of all tables, newest first: those before (:committed_at, :table_id), back to
-- (:first_at, :first_id), which bounds what is looked at where few of them fit. No index serves the
-- search, so letters may be of any case at no cost. The join is written so that SQLite follows the
-- order of the commits.
SELECT v.table_id, t.name, v.version, v.committed_at, v.committer, v.operation, v.operation_params,
       v.transaction_id, v.num_adds, v.num_removes, v.bytes_added, v.bytes_removed, v.live_files,
       v.live_bytes, v.commit_info
FROM dl_table_versions AS v CROSS JOIN dl_tables AS t
WHERE t.table_id = v.table_id
  AND v.committed_at <= :committed_at
  AND (v.committed_at < :committed_at OR v.table_id < :table_id)
  AND v.committed_at >= :first_at AND (v.committed_at > :first_at OR v.table_id >= :first_id)
  AND (CAST(:operation AS TEXT) IS NULL OR lower(v.operation) = lower(CAST(:operation AS TEXT)))
  AND (CAST(:committer AS TEXT) IS NULL OR lower(v.committer) = lower(CAST(:committer AS TEXT)))
ORDER BY v.committed_at DESC, v.table_id DESC LIMIT :limit;

-- name: browse_changes_end
-- The commit at which a search stops for now: so many are before it, from where the search begins.
SELECT committed_at, table_id FROM dl_table_versions
WHERE committed_at >= :since AND committed_at <= :committed_at
  AND (committed_at < :committed_at OR table_id < :table_id)
ORDER BY committed_at DESC, table_id DESC LIMIT 1 OFFSET :searched;

-- name: browse_versions
-- A page of commits from a stretch of versions, newest first. The stretch bounds what is looked at
-- where few of them fit.
SELECT version, committed_at, committer, operation, operation_params, transaction_id, num_adds,
       num_removes, bytes_added, bytes_removed, live_files, live_bytes, commit_info
FROM dl_table_versions
WHERE table_id = :table_id AND version >= :first AND version < :before
  AND (CAST(:operation AS TEXT) IS NULL OR lower(operation) = lower(CAST(:operation AS TEXT)))
  AND (CAST(:committer AS TEXT) IS NULL OR lower(committer) = lower(CAST(:committer AS TEXT)))
ORDER BY version DESC LIMIT :limit;

-- name: browse_growth
-- Versions at equal steps, each looked up by its key.
WITH RECURSIVE wanted(version) AS (
    SELECT CAST(:first AS BIGINT)
    UNION ALL
    SELECT wanted.version + :step FROM wanted WHERE wanted.version + :step <= :last
)
SELECT v.version, v.committed_at, v.live_files, v.live_bytes
FROM wanted CROSS JOIN dl_table_versions AS v
WHERE v.table_id = :table_id AND v.version = wanted.version
ORDER BY v.version;

-- name: browse_activity
-- When the newest commits of all tables were made.
SELECT committed_at FROM dl_table_versions ORDER BY committed_at DESC LIMIT :limit;

-- name: browse_versions_at
-- The newest version before each of several moments, :step apart: each is one step into an index, and
-- versions are dense, so that their differences count the commits in between.
WITH RECURSIVE wanted(moment) AS (
    SELECT CAST(:first AS BIGINT)
    UNION ALL
    SELECT wanted.moment + :step FROM wanted WHERE wanted.moment + :step <= :last
)
SELECT wanted.moment, (
    SELECT v.version FROM dl_table_versions AS v
    WHERE v.table_id = :table_id AND v.committed_at < wanted.moment
    ORDER BY v.committed_at DESC LIMIT 1)
FROM wanted ORDER BY wanted.moment;

-- name: browse_contention
-- Which version each of the newest commits had read, of all tables.
SELECT version, json_extract(commit_info, '$.readVersion') FROM dl_table_versions
ORDER BY committed_at DESC LIMIT :limit;

-- name: browse_files_ahead
-- How many live files the next versions have, newest first, as far as :limit of them go.
SELECT added_version, count(*)
FROM (
    SELECT added_version FROM dl_active_files
    WHERE table_id = :table_id AND removed_version = 9223372036854775807
      AND added_version <= :version
    ORDER BY added_version DESC LIMIT :limit
) AS ahead
GROUP BY added_version ORDER BY added_version DESC;

-- name: browse_files
-- A page of live files from a stretch of versions, the newest first, and by path within a version. By
-- path alone it would have to pass all files that were ever removed. The stretch bounds what is sorted.
SELECT path, dv_id, size_bytes, modification_time, added_version, partition_values
FROM dl_active_files
WHERE table_id = :table_id AND removed_version = 9223372036854775807
  AND added_version >= :first AND added_version <= :version
  AND (added_version < :version OR (path, dv_id) > (:path, :dv_id))
ORDER BY added_version DESC, path, dv_id LIMIT :limit;

-- name: browse_added
-- A page of the live files of one version that has very many. The ledger has them in this order, so
-- nothing is sorted; :last_path and :last_dv_id bound how many are passed that are not live any more.
SELECT f.path, f.dv_id, f.size_bytes, f.modification_time, f.added_version, f.partition_values
FROM dl_add_files AS a CROSS JOIN dl_active_files AS f
WHERE a.table_id = :table_id AND a.version = :version
  AND (a.path, a.dv_id) > (:path, :dv_id)
  AND a.path <= :last_path AND (a.path < :last_path OR a.dv_id <= :last_dv_id)
  AND f.table_id = a.table_id AND f.path = a.path AND f.dv_id = a.dv_id
  AND f.removed_version = 9223372036854775807 AND f.added_version = a.version
ORDER BY a.path, a.dv_id LIMIT :limit;

-- name: browse_added_end
-- The file at which such a page stops for now: so many of the version are before it.
SELECT path, dv_id FROM dl_add_files
WHERE table_id = :table_id AND version = :version AND (path, dv_id) > (:path, :dv_id)
ORDER BY path, dv_id LIMIT 1 OFFSET :searched;

-- name: browse_added_last
-- The last file that a version has added.
SELECT path, dv_id FROM dl_add_files
WHERE table_id = :table_id AND version = :version
ORDER BY path DESC, dv_id DESC LIMIT 1;

-- name: browse_sizes
-- How many of the newest :limit live files have which size: 4^n KiB and more, up to 1 GiB.
SELECT bucket, count(*), sum(size_bytes)
FROM (
    SELECT size_bytes,
           CASE WHEN size_bytes < 1024 THEN 0 WHEN size_bytes < 4096 THEN 1
                WHEN size_bytes < 16384 THEN 2 WHEN size_bytes < 65536 THEN 3
                WHEN size_bytes < 262144 THEN 4 WHEN size_bytes < 1048576 THEN 5
                WHEN size_bytes < 4194304 THEN 6 WHEN size_bytes < 16777216 THEN 7
                WHEN size_bytes < 67108864 THEN 8 WHEN size_bytes < 268435456 THEN 9
                WHEN size_bytes < 1073741824 THEN 10 ELSE 11 END AS bucket
    FROM dl_active_files
    WHERE table_id = :table_id AND removed_version = 9223372036854775807
    ORDER BY added_version DESC LIMIT :limit
) AS sampled
GROUP BY bucket ORDER BY bucket;
