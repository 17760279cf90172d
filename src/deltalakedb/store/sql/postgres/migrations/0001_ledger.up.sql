-- The authoritative log of every table: an append-only ledger with one relation per Delta action,
-- the maintained interval table dl_active_files, and the mirror queue.
-- All times are milliseconds since the epoch, as in the Delta protocol.
-- JSONB holds maps of strings; JSON holds documents whose exact text is part of the log.

CREATE TYPE dl_mirror_state AS ENUM ('PENDING', 'FAILED', 'SUCCEEDED');

CREATE TABLE dl_tables (
    table_id            UUID    NOT NULL PRIMARY KEY,
    name                TEXT    NOT NULL UNIQUE,
    location            TEXT    NOT NULL UNIQUE,
    protocol_min_reader INTEGER NOT NULL CHECK (protocol_min_reader >= 1),
    protocol_min_writer INTEGER NOT NULL CHECK (protocol_min_writer >= 1),
    properties          JSONB   NOT NULL DEFAULT '{}',
    created_at          BIGINT  NOT NULL CHECK (created_at >= 0),
    updated_at          BIGINT  NOT NULL CHECK (updated_at >= 0)
);

-- Every commit updates its head in place: the free half page keeps those updates off the index.
CREATE TABLE dl_table_heads (
    table_id        UUID   NOT NULL PRIMARY KEY,
    current_version BIGINT NOT NULL CHECK (current_version >= 0)
) WITH (fillfactor = 50);

CREATE TABLE dl_table_versions (
    table_id          UUID   NOT NULL,
    version           BIGINT NOT NULL CHECK (version >= 0),
    committed_at      BIGINT NOT NULL CHECK (committed_at >= 0),
    committer         TEXT,
    operation         TEXT,
    operation_params  JSONB,
    operation_metrics JSONB,
    commit_info       JSON,
    commit_uuid       UUID,
    transaction_id    UUID,
    num_actions       BIGINT NOT NULL CHECK (num_actions >= 0),
    num_adds          BIGINT NOT NULL CHECK (num_adds >= 0),
    num_removes       BIGINT NOT NULL CHECK (num_removes >= 0),
    bytes_added       BIGINT NOT NULL CHECK (bytes_added >= 0),
    bytes_removed     BIGINT NOT NULL CHECK (bytes_removed >= 0),
    live_files        BIGINT NOT NULL CHECK (live_files >= 0),
    live_bytes        BIGINT NOT NULL CHECK (live_bytes >= 0),
    recorded_at       BIGINT NOT NULL CHECK (recorded_at >= 0),
    PRIMARY KEY (table_id, version)
);
CREATE INDEX dl_table_versions_committed_at ON dl_table_versions (table_id, committed_at);
CREATE INDEX dl_table_versions_transaction ON dl_table_versions (transaction_id)
    WHERE transaction_id IS NOT NULL;

CREATE TABLE dl_add_files (
    table_id                   UUID    NOT NULL,
    version                    BIGINT  NOT NULL CHECK (version >= 0),
    path                       TEXT    NOT NULL,
    dv_id                      TEXT    NOT NULL DEFAULT '',
    size_bytes                 BIGINT  NOT NULL CHECK (size_bytes >= 0),
    modification_time          BIGINT  NOT NULL CHECK (modification_time >= 0),
    data_change                BOOLEAN NOT NULL,
    partition_values           JSONB   NOT NULL,
    stats                      TEXT,
    tags                       JSONB,
    deletion_vector            JSON,
    base_row_id                BIGINT,
    default_row_commit_version BIGINT,
    clustering_provider        TEXT,
    extra                      JSON,
    PRIMARY KEY (table_id, version, path, dv_id)
);
CREATE INDEX dl_add_files_path ON dl_add_files (table_id, path, dv_id, version DESC);
CREATE INDEX dl_add_files_partition_values ON dl_add_files
    USING GIN (partition_values jsonb_path_ops);

CREATE TABLE dl_remove_files (
    table_id                   UUID    NOT NULL,
    version                    BIGINT  NOT NULL CHECK (version >= 0),
    path                       TEXT    NOT NULL,
    dv_id                      TEXT    NOT NULL DEFAULT '',
    deletion_timestamp         BIGINT  CHECK (deletion_timestamp >= 0),
    data_change                BOOLEAN NOT NULL,
    extended_file_metadata     BOOLEAN,
    partition_values           JSONB,
    size_bytes                 BIGINT  CHECK (size_bytes >= 0),
    stats                      TEXT,
    tags                       JSONB,
    deletion_vector            JSON,
    base_row_id                BIGINT,
    default_row_commit_version BIGINT,
    extra                      JSON,
    PRIMARY KEY (table_id, version, path, dv_id)
);
CREATE INDEX dl_remove_files_path ON dl_remove_files (table_id, path, dv_id, version DESC);

CREATE TABLE dl_cdc_files (
    table_id         UUID    NOT NULL,
    version          BIGINT  NOT NULL CHECK (version >= 0),
    path             TEXT    NOT NULL,
    size_bytes       BIGINT  NOT NULL CHECK (size_bytes >= 0),
    data_change      BOOLEAN NOT NULL,
    partition_values JSONB   NOT NULL,
    tags             JSONB,
    extra            JSON,
    PRIMARY KEY (table_id, version, path)
);

CREATE TABLE dl_metadata_updates (
    table_id          UUID   NOT NULL,
    version           BIGINT NOT NULL CHECK (version >= 0),
    metadata_id       TEXT   NOT NULL,
    name              TEXT,
    description       TEXT,
    format_provider   TEXT   NOT NULL,
    format_options    JSONB  NOT NULL,
    schema_json       JSON,
    partition_columns TEXT[] NOT NULL,
    table_properties  JSONB  NOT NULL,
    created_time      BIGINT CHECK (created_time >= 0),
    extra             JSON,
    PRIMARY KEY (table_id, version)
);

CREATE TABLE dl_protocol_updates (
    table_id           UUID    NOT NULL,
    version            BIGINT  NOT NULL CHECK (version >= 0),
    min_reader_version INTEGER NOT NULL CHECK (min_reader_version >= 1),
    min_writer_version INTEGER NOT NULL CHECK (min_writer_version >= 1),
    reader_features    TEXT[],
    writer_features    TEXT[],
    extra              JSON,
    PRIMARY KEY (table_id, version)
);

CREATE TABLE dl_txn_actions (
    table_id    UUID   NOT NULL,
    version     BIGINT NOT NULL CHECK (version >= 0),
    app_id      TEXT   NOT NULL,
    txn_version BIGINT NOT NULL,
    last_update BIGINT,
    extra       JSON,
    PRIMARY KEY (table_id, version, app_id)
);
CREATE INDEX dl_txn_actions_app ON dl_txn_actions (table_id, app_id, version DESC);

CREATE TABLE dl_domain_metadata (
    table_id      UUID    NOT NULL,
    version       BIGINT  NOT NULL CHECK (version >= 0),
    domain        TEXT    NOT NULL,
    configuration TEXT    NOT NULL,
    removed       BOOLEAN NOT NULL,
    extra         JSON,
    PRIMARY KEY (table_id, version, domain)
);

-- Actions that this release does not know, kept as they came.
CREATE TABLE dl_other_actions (
    table_id UUID    NOT NULL,
    version  BIGINT  NOT NULL CHECK (version >= 0),
    ordinal  INTEGER NOT NULL CHECK (ordinal >= 0),
    action   JSON    NOT NULL,
    PRIMARY KEY (table_id, version, ordinal)
);

-- A logical file is a path with a deletion vector. It is live at version V exactly when
-- added_version <= V < removed_version; a live file has the greatest bigint as removed_version.
-- The key makes it impossible for a logical file to be live twice.
CREATE TABLE dl_active_files (
    table_id                   UUID    NOT NULL,
    path                       TEXT    NOT NULL,
    dv_id                      TEXT    NOT NULL DEFAULT '',
    added_version              BIGINT  NOT NULL CHECK (added_version >= 0),
    removed_version            BIGINT  NOT NULL CHECK (removed_version > added_version),
    size_bytes                 BIGINT  NOT NULL CHECK (size_bytes >= 0),
    modification_time          BIGINT  NOT NULL CHECK (modification_time >= 0),
    data_change                BOOLEAN NOT NULL,
    partition_values           JSON    NOT NULL,
    stats                      TEXT,
    tags                       JSON,
    deletion_vector            JSON,
    base_row_id                BIGINT,
    default_row_commit_version BIGINT,
    clustering_provider        TEXT,
    extra                      JSON,
    PRIMARY KEY (table_id, path, dv_id, removed_version)
);
CREATE INDEX dl_active_files_interval ON dl_active_files
    (table_id, removed_version, added_version);

CREATE TABLE dl_mirror_status (
    table_id        UUID            NOT NULL,
    version         BIGINT          NOT NULL CHECK (version >= 0),
    status          dl_mirror_state NOT NULL,
    attempts        INTEGER         NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    last_error      TEXT,
    digest          TEXT            NOT NULL,
    payload         BYTEA,
    payload_bytes   BIGINT          NOT NULL CHECK (payload_bytes >= 0),
    next_attempt_at BIGINT          NOT NULL DEFAULT 0 CHECK (next_attempt_at >= 0),
    created_at      BIGINT          NOT NULL CHECK (created_at >= 0),
    updated_at      BIGINT          NOT NULL CHECK (updated_at >= 0),
    PRIMARY KEY (table_id, version)
);
-- Compressing a payload that is dropped seconds later is work for nothing.
ALTER TABLE dl_mirror_status ALTER COLUMN payload SET STORAGE EXTERNAL;
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
        SELECT table_id, version, path, dv_id, true AS is_add,
               size_bytes, partition_values, stats, modification_time
        FROM dl_add_files
        UNION ALL
        SELECT table_id, version, path, dv_id, false, NULL, NULL, NULL, NULL
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
       a.modification_time, a.data_change, a.partition_values::json AS partition_values, a.stats,
       a.tags::json AS tags, a.deletion_vector, a.base_row_id, a.default_row_commit_version,
       a.clustering_provider, a.extra
FROM (
    SELECT table_id, path, dv_id, version, is_add,
           lead(version, 1, 9223372036854775807) OVER (
               PARTITION BY table_id, path, dv_id ORDER BY version
           ) AS removed_version
    FROM (
        SELECT table_id, path, dv_id, version, true AS is_add FROM dl_add_files
        UNION ALL
        SELECT table_id, path, dv_id, version, false FROM dl_remove_files
    ) AS actions
) AS i
JOIN dl_add_files AS a
  ON a.table_id = i.table_id AND a.version = i.version AND a.path = i.path AND a.dv_id = i.dv_id
WHERE i.is_add;
