-- Planned columns: the bounds of up to three columns of a table, as keys in the order of their values,
-- beside each file. A condition on one of them finds its files without reading their statistics.
-- A file is in the class of the smallest even width with key_high - key_low < 2^width; so those that
-- overlap [a, b] begin, in each class, between a - 2^width and b.

ALTER TABLE dl_tables ADD COLUMN plan TEXT;

ALTER TABLE dl_active_files ADD COLUMN key1_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key1_low BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key1_high BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key2_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key2_low BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key2_high BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key3_width INTEGER;
ALTER TABLE dl_active_files ADD COLUMN key3_low BIGINT;
ALTER TABLE dl_active_files ADD COLUMN key3_high BIGINT;

CREATE INDEX dl_active_files_key1 ON dl_active_files (table_id, key1_width, key1_low)
    WHERE key1_width IS NOT NULL;
CREATE INDEX dl_active_files_key2 ON dl_active_files (table_id, key2_width, key2_low)
    WHERE key2_width IS NOT NULL;
CREATE INDEX dl_active_files_key3 ON dl_active_files (table_id, key3_width, key3_low)
    WHERE key3_width IS NOT NULL;

-- What planning cannot say in plain SQL, because a cast would fail where it should answer "unknown".
-- NULL means unknown: the file may match.

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
