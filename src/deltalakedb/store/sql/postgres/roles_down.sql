-- Takes back what roles.sql gave in the current schema, and drops the roles where nothing else of the
-- server uses them. Run it as the owner of the schema; dropping needs CREATEROLE.

DO $roles$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['deltalakedb_reader', 'deltalakedb_writer', 'deltalakedb_mirror'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = role);
        -- Table privileges include those on single columns.
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', current_schema(), role);
        EXECUTE format('REVOKE ALL ON SCHEMA %I FROM %I', current_schema(), role);
        BEGIN
            EXECUTE format('DROP ROLE %I', role);
        EXCEPTION WHEN dependent_objects_still_exist THEN
            RAISE NOTICE 'the role % is kept: another schema or database uses it', role;
        END;
    END LOOP;
END
$roles$;
