-- Roles with the least privileges that each job needs, for the catalog in the current schema.
--
--   deltalakedb_reader  reads everything: open tables, list files, history, verify.
--   deltalakedb_writer  commits: it may add to the ledger, move heads and end file intervals. It may
--                       not change or delete what the ledger says: history stays as it was written.
--   deltalakedb_mirror  publishes: it reads everything and records what it has published.
--
-- A writer that also publishes (mirror="inline", the default of connect()) needs both of the last two.
-- DELETE is given on dl_active_files only, to the writer, because rebuilding that relation from the
-- ledger empties it first. Dropping a table, expiring history and migrating delete or reshape history:
-- they stay with the owner of the schema. So do the settings of the catalog, such as its warehouse.
--
-- Run it as the owner of the schema, after every migration; running it again changes nothing. The
-- first time it needs CREATEROLE, because roles belong to the whole server. Then, for each person
-- or service:
--
--   CREATE ROLE etl LOGIN PASSWORD '…' IN ROLE deltalakedb_writer, deltalakedb_mirror;

DO $roles$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['deltalakedb_reader', 'deltalakedb_writer', 'deltalakedb_mirror'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- another catalog of this server was faster
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role);
    END LOOP;
    IF EXISTS (
        SELECT 1 FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
        WHERE n.nspname = current_schema() AND a.grantee = 0 AND a.privilege_type = 'CREATE'
    ) THEN
        RAISE WARNING 'everybody may create objects in the schema %', current_schema()
            USING HINT = format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
    END IF;
END
$roles$;

GRANT SELECT ON
    dl_schema_migrations, dl_tables, dl_table_heads, dl_table_versions, dl_add_files,
    dl_remove_files, dl_cdc_files, dl_metadata_updates, dl_protocol_updates, dl_txn_actions,
    dl_domain_metadata, dl_other_actions, dl_active_files, dl_mirror_status, dl_mirror_tables,
    dl_file_pages, dl_page_columns, dl_page_texts, dl_paged_tables, dl_exported_tables, dl_import_stages,
    dl_settings, vw_latest_action_per_path, vw_active_files, vw_ledger_intervals
TO deltalakedb_reader, deltalakedb_writer, deltalakedb_mirror;

GRANT INSERT ON
    dl_tables, dl_table_heads, dl_table_versions, dl_add_files, dl_remove_files, dl_cdc_files,
    dl_metadata_updates, dl_protocol_updates, dl_txn_actions, dl_domain_metadata,
    dl_other_actions, dl_active_files, dl_mirror_status, dl_file_pages, dl_page_columns, dl_page_texts,
    dl_paged_tables, dl_import_stages
TO deltalakedb_writer;
-- Pages repeat what dl_active_files says; whoever writes may make them anew.
GRANT UPDATE, DELETE ON dl_file_pages, dl_page_columns, dl_page_texts, dl_paged_tables TO deltalakedb_writer;
-- An import that has come to its end is none any more.
GRANT DELETE ON dl_import_stages TO deltalakedb_writer;
-- The identity of a table never changes; a renamed or moved table keeps its id.
GRANT UPDATE (
    name, location, protocol_min_reader, protocol_min_writer, properties, updated_at, plan)
    ON dl_tables TO deltalakedb_writer;
GRANT UPDATE (current_version) ON dl_table_heads TO deltalakedb_writer;
GRANT UPDATE (
    removed_version, key1_width, key1_low, key1_high, key2_width, key2_low, key2_high,
    key3_width, key3_low, key3_high), DELETE ON dl_active_files TO deltalakedb_writer;

-- What was promised to be published (digest and size) is the writer's word, and stays.
GRANT UPDATE (
    status, attempts, last_error, error_kind, payload, next_attempt_at, updated_at)
    ON dl_mirror_status TO deltalakedb_mirror;
GRANT INSERT, UPDATE ON dl_mirror_tables TO deltalakedb_mirror;
