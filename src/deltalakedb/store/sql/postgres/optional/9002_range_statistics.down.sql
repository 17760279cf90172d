-- Takes the indexes that use the function with it.
DROP FUNCTION dl_stat_number(TEXT, TEXT, VARIADIC TEXT[]) CASCADE;
