-- What GIN cannot do: ranges over statistics. A bound of a column as a number, for expression indexes
-- and for queries that use them. Statistics are text that need not be JSON, and a bound need not be
-- there or be a number: then it is NULL, which means that the file may match.
CREATE FUNCTION dl_stat_number(stats TEXT, bound TEXT, VARIADIC column_path TEXT[])
RETURNS NUMERIC LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    found JSONB;
BEGIN
    found := stats::jsonb #> (ARRAY[bound] || column_path);
    IF jsonb_typeof(found) = 'number' THEN
        RETURN found::numeric;
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END;
$$;
