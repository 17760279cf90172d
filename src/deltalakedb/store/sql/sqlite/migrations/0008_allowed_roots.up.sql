-- Where files of a table may lie beside its own location, as a JSON array of locations: those that
-- its operator has allowed, and the source of a shallow clone. NULL: nowhere else.

ALTER TABLE dl_tables ADD COLUMN allowed_roots TEXT;
