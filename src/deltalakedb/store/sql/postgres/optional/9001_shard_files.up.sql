-- Optional: the relations of files, hash-partitioned by table into 16 shards. It helps when many large
-- tables share a catalog: each shard has its own, smaller indexes, and is vacuumed by itself.
--
-- Nothing is spelled out here that the catalog of Postgres knows: columns, checks, keys, indexes,
-- grants and views are carried over as they are, those of later migrations too. All of it is one
-- transaction that keeps others out of these relations while it copies them.

DO $shard$
DECLARE
    -- The relations that grow with the number of files.
    names     CONSTANT text[] := ARRAY['dl_add_files', 'dl_remove_files', 'dl_cdc_files', 'dl_active_files'];
    shards    CONSTANT integer := 16;
    here      CONSTANT oid := quote_ident(current_schema())::regnamespace;
    relation  text;
    old       oid;
    new       oid;
    owner     text;
    options   text;
    statement text;
    item      record;
    views     text[] := '{}';
    later     text[];
    copied    bigint;
    counted   bigint;
BEGIN
    FOREACH relation IN ARRAY names LOOP
        EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', relation);
        old := relation::regclass;
        PERFORM 1 FROM pg_class WHERE oid = old AND relkind = 'r' AND relnamespace = here;
        IF NOT FOUND THEN
            RAISE EXCEPTION '% is not a plain table: it is sharded already', old::regclass
                USING ERRCODE = 'wrong_object_type';
        END IF;
        -- What cannot be carried over is refused rather than lost.
        PERFORM 1 FROM pg_trigger WHERE tgrelid = old AND NOT tgisinternal
        UNION ALL SELECT 1 FROM pg_policy WHERE polrelid = old
        UNION ALL SELECT 1 FROM pg_publication_rel WHERE prrelid = old
        UNION ALL SELECT 1 FROM pg_constraint WHERE contype = 'f' AND old IN (conrelid, confrelid);
        IF FOUND THEN
            RAISE EXCEPTION '% has triggers, policies, publications or foreign keys', old::regclass
                USING ERRCODE = 'dependent_objects_still_exist',
                      HINT = 'Remove them, and make them again afterwards.';
        END IF;
    END LOOP;

    -- Views are bound to the relations themselves, not to their names. Their text is taken before
    -- anything is renamed, and CREATE OR REPLACE binds it anew: the views, their grants and what
    -- depends on them stay.
    FOR item IN
        SELECT DISTINCT c.oid, c.relname, n.nspname, c.reloptions
        FROM pg_depend AS d
        JOIN pg_rewrite AS r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
        JOIN pg_class AS c ON c.oid = r.ev_class AND c.relkind = 'v'
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE d.refclassid = 'pg_class'::regclass
          AND d.refobjid = ANY (SELECT name::regclass::oid FROM unnest(names) AS name)
    LOOP
        options := coalesce(' WITH (' || array_to_string(item.reloptions, ', ') || ')', '');
        views := views || format('CREATE OR REPLACE VIEW %I.%I%s AS %s',
            item.nspname, item.relname, options, pg_get_viewdef(item.oid));
    END LOOP;

    FOREACH relation IN ARRAY names LOOP
        old := relation::regclass;
        later := '{}';
        SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class WHERE oid = old;
        -- Keys and indexes are made after the rows are in: their names are free by then.
        SELECT coalesce(array_agg(format('ALTER TABLE %I ADD CONSTRAINT %I %s',
                   relation, conname, pg_get_constraintdef(oid)) ORDER BY conname), '{}')
        INTO later FROM pg_constraint WHERE conrelid = old AND contype IN ('p', 'u', 'x');
        SELECT later || coalesce(array_agg(
                   regexp_replace(pg_get_indexdef(indexrelid), ' ON (ONLY )?', ' ON ')
                   ORDER BY indexrelid), '{}')
        INTO later FROM pg_index AS i
        WHERE indrelid = old
          AND NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = i.indexrelid);

        EXECUTE format('ALTER TABLE %I RENAME TO %I', relation, relation || '_before');
        SELECT coalesce(' WITH (' || array_to_string(reloptions, ', ') || ')', '') INTO options
        FROM pg_class WHERE oid = old;
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL EXCLUDING INDEXES) '
            'PARTITION BY HASH (table_id)', relation, relation || '_before');
        FOR shard IN 0 .. shards - 1 LOOP
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES WITH (MODULUS %s, REMAINDER %s)%s',
                relation || '_' || to_char(shard, 'FM00'), relation, shards, shard, options);
            EXECUTE format('ALTER TABLE %I OWNER TO %I', relation || '_' || to_char(shard, 'FM00'), owner);
        END LOOP;
        new := relation::regclass;
        EXECUTE format('ALTER TABLE %I OWNER TO %I', relation, owner);

        EXECUTE format('INSERT INTO %I SELECT * FROM %I', relation, relation || '_before');
        GET DIAGNOSTICS copied = ROW_COUNT;
        EXECUTE format('SELECT count(*) FROM %I', relation || '_before') INTO counted;
        IF copied <> counted THEN
            RAISE EXCEPTION '% of % rows of % were copied', copied, counted, relation;
        END IF;

        -- The same grants, whatever the default privileges of this schema are.
        FOR item IN
            SELECT DISTINCT a.grantee FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.oid = new
        LOOP
            EXECUTE format('REVOKE ALL ON %I FROM %s', relation,
                CASE item.grantee WHEN 0 THEN 'PUBLIC' ELSE item.grantee::regrole::text END);
        END LOOP;
        FOR item IN
            SELECT NULL::name AS attname, a.*
            FROM pg_class AS c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS a
            WHERE c.oid = old
            UNION ALL
            SELECT t.attname, a.* FROM pg_attribute AS t, aclexplode(t.attacl) AS a
            WHERE t.attrelid = old AND NOT t.attisdropped
        LOOP
            EXECUTE format('GRANT %s%s ON %I TO %s%s', item.privilege_type,
                coalesce('(' || quote_ident(item.attname) || ')', ''), relation,
                CASE item.grantee WHEN 0 THEN 'PUBLIC' ELSE item.grantee::regrole::text END,
                CASE WHEN item.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END);
        END LOOP;

        FOREACH statement IN ARRAY views LOOP
            EXECUTE statement;
        END LOOP;
        EXECUTE format('DROP TABLE %I', relation || '_before');
        FOREACH statement IN ARRAY later LOOP
            EXECUTE statement;
        END LOOP;
        EXECUTE format('ANALYZE %I', relation);
    END LOOP;
END
$shard$;
