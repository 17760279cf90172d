-- The authoritative log of every table: an append-only ledger with one relation per Delta action,
-- the maintained interval table dl_active_files, and the mirror queue.
-- All times are milliseconds since the epoch, as in the Delta protocol.
-- JSON is text that json_valid accepts; UUIDs are text; booleans are 0 and 1.

CREATE TABLE dl_tables (
    table_id            TEXT    NOT NULL PRIMARY KEY,
    name                TEXT    NOT NULL UNIQUE,
    location            TEXT    NOT NULL UNIQUE,
    protocol_min_reader INTEGER NOT NULL CHECK (protocol_min_reader >= 1),
    protocol_min_writer INTEGER NOT NULL CHECK (protocol_min_writer >= 1),
    properties          TEXT    NOT NULL DEFAULT '{}' CHECK (json_valid(properties)),
    created_at          INTEGER NOT NULL CHECK (created_at >= 0),
    updated_at          INTEGER NOT NULL CHECK (updated_at >= 0)
) STRICT;

CREATE TABLE dl_table_heads (
    table_id        TEXT    NOT NULL PRIMARY KEY,
    current_version INTEGER NOT NULL CHECK (current_version >= 0)
) STRICT;

CREATE TABLE dl_table_versions (
    table_id          TEXT    NOT NULL,
    version           INTEGER NOT NULL CHECK (version >= 0),
    committed_at      INTEGER NOT NULL CHECK (committed_at >= 0),
    committer         TEXT,
    operation         TEXT,
    operation_params  TEXT    CHECK (operation_params IS NULL OR json_valid(operation_params)),
    operation_metrics TEXT    CHECK (operation_metrics IS NULL OR json_valid(operation_metrics)),
    commit_info       TEXT    CHECK (commit_info IS NULL OR json_valid(commit_info)),
    commit_uuid       TEXT,
    transaction_id    TEXT,
    num_actions       INTEGER NOT NULL CHECK (num_actions >= 0),
    num_adds          INTEGER NOT NULL CHECK (num_adds >= 0),
    num_removes       INTEGER NOT NULL CHECK (num_removes >= 0),
    bytes_added       INTEGER NOT NULL CHECK (bytes_added >= 0),
    bytes_removed     INTEGER NOT NULL CHECK (bytes_removed >= 0),
    live_files        INTEGER NOT NULL CHECK (live_files >= 0),
    live_bytes        INTEGER NOT NULL CHECK (live_bytes >= 0),
    recorded_at       INTEGER NOT NULL CHECK (recorded_at >= 0),
    PRIMARY KEY (table_id, version)
) STRICT;
CREATE INDEX dl_table_versions_committed_at ON dl_table_versions (table_id, committed_at);
CREATE INDEX dl_table_versions_transaction ON dl_table_versions (transaction_id)
    WHERE transaction_id IS NOT NULL;

CREATE TABLE dl_add_files (
    table_id                   TEXT    NOT NULL,
    version                    INTEGER NOT NULL CHECK (version >= 0),
    path                       TEXT    NOT NULL,
    dv_id                      TEXT    NOT NULL DEFAULT '',
    size_bytes                 INTEGER NOT NULL CHECK (size_bytes >= 0),
    modification_time          INTEGER NOT NULL CHECK (modification_time >= 0),
    data_change                INTEGER NOT NULL CHECK (data_change IN (0, 1)),
    partition_values           TEXT    NOT NULL CHECK (json_valid(partition_values)),
    stats                      TEXT,
    tags                       TEXT    CHECK (tags IS NULL OR json_valid(tags)),
    deletion_vector            TEXT    CHECK (deletion_vector IS NULL OR json_valid(deletion_vector)),
    base_row_id                INTEGER,
    default_row_commit_version INTEGER,
    clustering_provider        TEXT,
    extra                      TEXT    CHECK (extra IS NULL OR json_valid(extra)),
    PRIMARY KEY (table_id, version, path, dv_id)
) STRICT;
CREATE INDEX dl_add_files_path ON dl_add_files (table_id, path, dv_id, version DESC);

CREATE TABLE dl_remove_files (
    table_id                   TEXT    NOT NULL,
    version                    INTEGER NOT NULL CHECK (version >= 0),
    path                       TEXT    NOT NULL,
    dv_id                      TEXT    NOT NULL DEFAULT '',
    deletion_timestamp         INTEGER CHECK (deletion_timestamp >= 0),
    data_change                INTEGER NOT NULL CHECK (data_change IN (0, 1)),
    extended_file_metadata     INTEGER CHECK (extended_file_metadata IN (0, 1)),
    partition_values           TEXT    CHECK (partition_values IS NULL OR json_valid(partition_values)),
    size_bytes                 INTEGER CHECK (size_bytes >= 0),
    stats                      TEXT,
    tags                       TEXT    CHECK (tags IS NULL OR json_valid(tags)),
    deletion_vector            TEXT    CHECK (deletion_vector IS NULL OR json_valid(deletion_vector)),
    base_row_id                INTEGER,
    default_row_commit_version INTEGER,
    extra                      TEXT    CHECK (extra IS NULL OR json_valid(extra)),
    PRIMARY KEY (table_id, version, path, dv_id)
) STRICT;
CREATE INDEX dl_remove_files_path ON dl_remove_files (table_id, path, dv_id, version DESC);

CREATE TABLE dl_cdc_files (
    table_id         TEXT    NOT NULL,
    version          INTEGER NOT NULL CHECK (version >= 0),
    path             TEXT    NOT NULL,
    size_bytes       INTEGER NOT NULL CHECK (size_bytes >= 0),
    data_change      INTEGER NOT NULL CHECK (data_change IN (0, 1)),
    partition_values TEXT    NOT NULL CHECK (json_valid(partition_values)),
    tags             TEXT    CHECK (tags IS NULL OR json_valid(tags)),
    extra            TEXT    CHECK (extra IS NULL OR json_valid(extra)),
    PRIMARY KEY (table_id, version, path)
) STRICT;

CREATE TABLE dl_metadata_updates (
    table_id          TEXT    NOT NULL,
    version           INTEGER NOT NULL CHECK (version >= 0),
    metadata_id       TEXT    NOT NULL,
    name              TEXT,
    description       TEXT,
    format_provider   TEXT    NOT NULL,
    format_options    TEXT    NOT NULL CHECK (json_valid(format_options)),
    schema_json       TEXT    CHECK (schema_json IS NULL OR json_valid(schema_json)),
    partition_columns TEXT    NOT NULL CHECK (json_valid(partition_columns)),
    table_properties  TEXT    NOT NULL CHECK (json_valid(table_properties)),
    created_time      INTEGER CHECK (created_time >= 0),
    extra             TEXT    CHECK (extra IS NULL OR json_valid(extra)),
    PRIMARY KEY (table_id, version)
) STRICT;

CREATE TABLE dl_protocol_updates (
    table_id           TEXT    NOT NULL,
    version            INTEGER NOT NULL CHECK (version >= 0),
    min_reader_version INTEGER NOT NULL CHECK (min_reader_version >= 1),
    min_writer_version INTEGER NOT NULL CHECK (min_writer_version >= 1),
    reader_features    TEXT    CHECK (reader_features IS NULL OR json_valid(reader_features)),
    writer_features    TEXT    CHECK (writer_features IS NULL OR json_valid(writer_features)),
    extra              TEXT    CHECK (extra IS NULL OR json_valid(extra)),
    PRIMARY KEY (table_id, version)
) STRICT;

CREATE TABLE dl_txn_actions (
    table_id    TEXT    NOT NULL,
    version     INTEGER NOT NULL CHECK (version >= 0),
    app_id      TEXT    NOT NULL,
    txn_version INTEGER NOT NULL,
    last_update INTEGER,
    extra       TEXT    CHECK (extra IS NULL OR json_valid(extra)),
    PRIMARY KEY (table_id, version, app_id)
) STRICT;
CREATE INDEX dl_txn_actions_app ON dl_txn_actions (table_id, app_id, version DESC);

CREATE TABLE dl_domain_metadata (
    table_id      TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version >= 0),
    domain        TEXT    NOT NULL,
    configuration TEXT    NOT NULL,
    removed       INTEGER NOT NULL CHECK (removed IN (0, 1)),
    extra         TEXT    CHECK (extra IS NULL OR json_valid(extra)),
    PRIMARY KEY (table_id, version, domain)
) STRICT;

-- Actions that this release does not know, kept as they came.
CREATE TABLE dl_other_actions (
    table_id TEXT    NOT NULL,
    version  INTEGER NOT NULL CHECK (version >= 0),
    ordinal  INTEGER NOT NULL CHECK (ordinal >= 0),
    action   TEXT    NOT NULL CHECK (json_valid(action)),
    PRIMARY KEY (table_id, version, ordinal)
) STRICT;

-- A logical file is a path with a deletion vector. It is live at version V exactly when
-- added_version <= V < removed_version; a live file has the greatest 64-bit integer as removed_version.
-- The key makes it impossible for a logical file to be live twice.
CREATE TABLE dl_active_files (
    table_id                   TEXT    NOT NULL,
    path                       TEXT    NOT NULL,
    dv_id                      TEXT    NOT NULL DEFAULT '',
    added_version              INTEGER NOT NULL CHECK (added_version >= 0),
    removed_version            INTEGER NOT NULL CHECK (removed_version > added_version),
    size_bytes                 INTEGER NOT NULL CHECK (size_bytes >= 0),
    modification_time          INTEGER NOT NULL CHECK (modification_time >= 0),
    data_change                INTEGER NOT NULL CHECK (data_change IN (0, 1)),
    partition_values           TEXT    NOT NULL CHECK (json_valid(partition_values)),
    stats                      TEXT,
    tags                       TEXT    CHECK (tags IS NULL OR json_valid(tags)),
    deletion_vector            TEXT    CHECK (deletion_vector IS NULL OR json_valid(deletion_vector)),
    base_row_id                INTEGER,
    default_row_commit_version INTEGER,
    clustering_provider        TEXT,
    extra                      TEXT    CHECK (extra IS NULL OR json_valid(extra)),
    PRIMARY KEY (table_id, path, dv_id, removed_version)
) STRICT;
CREATE INDEX dl_active_files_interval ON dl_active_files
    (table_id, removed_version, added_version);

CREATE TABLE dl_mirror_status (
    table_id        TEXT    NOT NULL,
    version         INTEGER NOT NULL CHECK (version >= 0),
    status          TEXT    NOT NULL CHECK (status IN ('PENDING', 'FAILED', 'SUCCEEDED')),
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    last_error      TEXT,
    digest          TEXT    NOT NULL,
    payload         BLOB,
    payload_bytes   INTEGER NOT NULL CHECK (payload_bytes >= 0),
    next_attempt_at INTEGER NOT NULL DEFAULT 0 CHECK (next_attempt_at >= 0),
    created_at      INTEGER NOT NULL CHECK (created_at >= 0),
    updated_at      INTEGER NOT NULL CHECK (updated_at >= 0),
    PRIMARY KEY (table_id, version)
) STRICT;
CREATE INDEX dl_mirror_status_backlog ON dl_mirror_status (table_id, version)
    WHERE status <> 'SUCCEEDED';

-- For each version of each table, the newest action of every logical file at that version.
-- Always filter by table_id and snapshot_version: both are pushed down into the window.
CREATE VIEW vw_latest_action_per_path AS
SELECT table_id, snapshot_version, path, dv_id, version, is_add,
       size_bytes, partition_values, stats, modification_time
FROM (
    SELECT v.table_id, v.version AS snapshot_version, a.path, a.dv_id, a.version, a.is_add,
           a.size_bytes, a.partition_values, a.stats, a.modification_time,
           row_number() OVER (
               PARTITION BY v.table_id, v.version, a.path, a.dv_id
               ORDER BY a.version DESC
           ) AS newest
    FROM dl_table_versions AS v
    JOIN (
        SELECT table_id, version, path, dv_id, 1 AS is_add,
               size_bytes, partition_values, stats, modification_time
        FROM dl_add_files
        UNION ALL
        SELECT table_id, version, path, dv_id, 0, NULL, NULL, NULL, NULL
        FROM dl_remove_files
    ) AS a ON a.table_id = v.table_id AND a.version <= v.version
) AS ranked
WHERE newest = 1;

CREATE VIEW vw_active_files AS
SELECT table_id, snapshot_version, path, dv_id, version AS added_version,
       size_bytes, partition_values, stats, modification_time
FROM vw_latest_action_per_path
WHERE is_add;

-- What dl_active_files must hold, derived from the ledger alone: each add opens an interval that the
-- next action on the same logical file ends. Always filter by table_id.
CREATE VIEW vw_ledger_intervals AS
SELECT a.table_id, a.path, a.dv_id, a.version AS added_version, i.removed_version, a.size_bytes,
       a.modification_time, a.data_change, a.partition_values, a.stats,
       a.tags, a.deletion_vector, a.base_row_id, a.default_row_commit_version,
       a.clustering_provider, a.extra
FROM (
    SELECT table_id, path, dv_id, version, is_add,
           lead(version, 1, 9223372036854775807) OVER (
               PARTITION BY table_id, path, dv_id ORDER BY version
           ) AS removed_version
    FROM (
        SELECT table_id, path, dv_id, version, 1 AS is_add FROM dl_add_files
        UNION ALL
        SELECT table_id, path, dv_id, version, 0 FROM dl_remove_files
    ) AS actions
) AS i
JOIN dl_add_files AS a
  ON a.table_id = i.table_id AND a.version = i.version AND a.path = i.path AND a.dv_id = i.dv_id
WHERE i.is_add;
