-- What the mirror knows of a table beside its queue. A lease says which worker tends the table until when;
-- its generation counts who has had it. It only spares work: publishing is safe without one. A table
-- whose log holds what this catalog has not written has a drift, and is left alone until that is settled.

CREATE TABLE dl_mirror_tables (
    table_id           UUID NOT NULL PRIMARY KEY,
    owner              VARCHAR,
    generation         BIGINT NOT NULL CHECK (generation >= 0),
    expires_at         BIGINT NOT NULL CHECK (expires_at >= 0),
    checkpoint_version BIGINT CHECK (checkpoint_version >= 0),
    checkpoint_error   VARCHAR,
    cleaned_at         BIGINT NOT NULL CHECK (cleaned_at >= 0),
    drift              JSON,
    updated_at         BIGINT NOT NULL CHECK (updated_at >= 0)
);

-- Whether another try may help ('transient') or somebody has to do something first ('permanent').
ALTER TABLE dl_mirror_status ADD COLUMN error_kind VARCHAR;
