DROP TABLE dl_page_columns;
-- Pages without their statistics serve nobody; they are made again.
DELETE FROM dl_file_pages WHERE stats IS NOT NULL;
DELETE FROM dl_paged_tables WHERE table_id NOT IN (SELECT table_id FROM dl_file_pages);
ALTER TABLE dl_file_pages DROP COLUMN stats;

-- Statistics are text that need not be JSON, and may hold numbers and characters that JSONB cannot.
CREATE FUNCTION dl_stats_document(stats TEXT)
RETURNS JSONB LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN stats::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END;
$$;

-- A timestamp with any offset as wall-clock text in UTC, which sorts by time. The offset makes the
-- cast the same in every session, and the years keep the text at four digits.
CREATE FUNCTION dl_utc_text(moment TEXT)
RETURNS TEXT LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    utc TIMESTAMP;
BEGIN
    IF moment !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' THEN
        RETURN NULL;
    END IF;
    utc := moment::timestamptz AT TIME ZONE 'UTC';
    IF utc < '0001-01-01' OR utc >= '9999-12-31' THEN
        RETURN NULL;
    END IF;
    RETURN to_char(utc, 'YYYY-MM-DD"T"HH24:MI:SS.US');
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END;
$$;
