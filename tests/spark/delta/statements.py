"""The statements of Delta on Spark, as stories: each goes on with the table of the one before.

{t} is the table of a story, {s} one with the rows of ROWS.
"""

from __future__ import annotations

ROWS = "SELECT id, CAST(id % 3 AS INT) AS part, CONCAT('v', id) AS v FROM range(9)"
_COPY = "CREATE TABLE {t} USING delta AS SELECT * FROM {s}"

# What Delta does not do where executors have no session of Spark, and its error.
CLUSTER_LIMITS = {"REORG TABLE": "No active or default Spark session found"}


def _with(properties: str) -> str:
    """The statement that copies {s} to a table with properties."""
    return f"CREATE TABLE {{t}} USING delta TBLPROPERTIES ({properties}) AS SELECT * FROM {{s}}"


STORIES: dict[str, list[str]] = {
    "create and insert": [
        "CREATE TABLE {t} (id BIGINT, part INT, v STRING) USING delta PARTITIONED BY (part)",
        "INSERT INTO {t} SELECT * FROM {s}",
        "INSERT INTO {t} BY NAME SELECT 'n' AS v, 10L AS id, 1 AS part",
        "INSERT INTO {t} (v, id) VALUES ('without a part', 11)",
        "INSERT INTO {t} REPLACE WHERE part = 1 SELECT 100L, 1, 'only'",
        "INSERT OVERWRITE {t} SELECT * FROM {s} WHERE id < 5",
        "INSERT OVERWRITE {t} BY NAME SELECT v, part, id FROM {s}",
        "INSERT OVERWRITE {t} PARTITION (part = 2) SELECT 200L, 'of a partition'",
        "SET spark.sql.sources.partitionOverwriteMode=dynamic",
        "INSERT OVERWRITE {t} SELECT 300L, 0, 'of the partitions of its rows'",
        "INSERT OVERWRITE {t} PARTITION (part) SELECT id, 7, v FROM {s} WHERE id > 6",
        "RESET spark.sql.sources.partitionOverwriteMode",
        "DELETE FROM {t} WHERE part = 7",
        "TRUNCATE TABLE {t}",
    ],
    "create or replace": [
        _COPY,
        "CREATE OR REPLACE TABLE {t} (a INT) USING delta",
        # Delta's own catalog fails on the next statement if the partition columns are not the last.
        (
            "CREATE OR REPLACE TABLE {t} USING delta PARTITIONED BY (part) "
            "AS SELECT id, v, part FROM {s}"
        ),
        "REPLACE TABLE {t} USING delta AS SELECT id FROM {s}",
        "CREATE OR REPLACE TABLE {t} USING delta CLUSTER BY (v) AS SELECT * FROM {s}",
    ],
    "rows": [
        _COPY,
        "UPDATE {t} SET v = upper(v) WHERE id > 5",
        "DELETE FROM {t} WHERE id = 2",
        (
            "MERGE INTO {t} t USING (SELECT id + 5 AS id, 7 AS part, 'm' AS v FROM {s}) s "
            "ON t.id = s.id WHEN MATCHED AND s.id = 6 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 'left'"
        ),
        (
            "MERGE WITH SCHEMA EVOLUTION INTO {t} t USING (SELECT 1L AS id, 2 AS part, 'x' AS v, "
            "true AS extra) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE AND t.id > 9 THEN DELETE"
        ),
        "UPDATE {t} SET part = (SELECT max(part) FROM {s}) WHERE extra IS NULL",
        "DELETE FROM {t}",
    ],
    "deletion vectors": [
        _with("'delta.enableDeletionVectors' = 'true'"),
        "DELETE FROM {t} WHERE id = 3",
        "UPDATE {t} SET part = 9 WHERE id = 4",
        "MERGE INTO {t} t USING (SELECT 5L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "REORG TABLE {t} APPLY (PURGE)",
    ],
    "alter": [
        _COPY,
        "ALTER TABLE {t} ADD COLUMNS (extra INT COMMENT 'new' AFTER id, n STRUCT<x: INT>)",
        "INSERT INTO {t} SELECT 50L, 1, 2, 'p', named_struct('x', 3)",
        "ALTER TABLE {t} ALTER COLUMN extra COMMENT 'other'",
        "ALTER TABLE {t} ALTER COLUMN v FIRST",
        "ALTER TABLE {t} ADD COLUMN n.y STRING",
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id >= 0)",
        "INSERT INTO {t} SELECT 'q', 52L, 1, 2, named_struct('x', 3, 'y', 'z')",
        "ALTER TABLE {t} DROP CONSTRAINT positive",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true', 'mine' = '1')",
        "ALTER TABLE {t} UNSET TBLPROPERTIES ('delta.appendOnly')",
        "COMMENT ON TABLE {t} IS 'a table'",
    ],
    "column mapping": [
        _COPY,
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {t} RENAME COLUMN v TO w",
        "INSERT INTO {t} SELECT 51L, 1, 'q'",
        "ALTER TABLE {t} ADD COLUMN `of two words` INT",
        "UPDATE {t} SET `of two words` = 5 WHERE id = 51",
        "ALTER TABLE {t} DROP COLUMN part",
        "ALTER TABLE {t} REPLACE COLUMNS (id BIGINT, w STRING)",
        "OPTIMIZE {t}",
    ],
    "column mapping by ids": [
        (
            "CREATE TABLE {t} (id BIGINT, part INT, v STRING) USING delta PARTITIONED BY (part) "
            "TBLPROPERTIES ('delta.columnMapping.mode' = 'id')"
        ),
        "INSERT INTO {t} SELECT * FROM {s}",
        "ALTER TABLE {t} RENAME COLUMN v TO part_of_v",
        "ALTER TABLE {t} RENAME COLUMN part TO v",
        "MERGE INTO {t} t USING {s} s ON t.id = s.id AND s.part = 1 WHEN MATCHED THEN DELETE",
        "ALTER TABLE {t} DROP COLUMN part_of_v",
    ],
    "optimize": [
        "CREATE TABLE {t} (id BIGINT, part INT, v STRING) USING delta PARTITIONED BY (part)",
        "INSERT INTO {t} SELECT * FROM {s}",
        "INSERT INTO {t} SELECT id + 10, part, v FROM {s}",
        "OPTIMIZE {t} WHERE part = 1",
        "OPTIMIZE {t}",
        "INSERT INTO {t} SELECT id + 20, part, v FROM {s}",
        "OPTIMIZE {t} ZORDER BY (id, v)",
        "VACUUM {t}",
        "VACUUM {t} DRY RUN",
        "SET spark.databricks.delta.retentionDurationCheck.enabled=false",
        "VACUUM {t} LITE RETAIN 0 HOURS",
        "VACUUM {t} RETAIN 0 HOURS",
        "RESET spark.databricks.delta.retentionDurationCheck.enabled",
        "UPDATE {t} SET v = 'after' WHERE id = 25",
    ],
    "liquid clustering": [
        "CREATE TABLE {t} (id BIGINT, part INT, v STRING) USING delta CLUSTER BY (id)",
        *(f"INSERT INTO {{t}} SELECT id + {n}, part, v FROM {{s}}" for n in range(0, 50, 10)),
        "OPTIMIZE {t}",
        "INSERT INTO {t} SELECT id + 50, part, v FROM {s}",
        "OPTIMIZE {t}",
        "ALTER TABLE {t} CLUSTER BY (part, v)",
        "OPTIMIZE {t} FULL",
        "DELETE FROM {t} WHERE part = 1",
        "ALTER TABLE {t} CLUSTER BY NONE",
    ],
    "restore": [
        _COPY,
        "DELETE FROM {t} WHERE id > 2",
        "ALTER TABLE {t} ADD COLUMN extra INT",
        "INSERT INTO {t} SELECT 50L, 1, 'p', 2",
        "RESTORE TABLE {t} TO VERSION AS OF 0",
        "RESTORE TABLE {t} TO VERSION AS OF 3",
    ],
    "shallow clone": [
        "CREATE TABLE {t} SHALLOW CLONE {s}",
        "DELETE FROM {t} WHERE id = 1",
        "INSERT INTO {t} SELECT id + 10, part, v FROM {s}",
        "OPTIMIZE {t}",
        "TRUNCATE TABLE {t}",  # Delta clones to empty tables only
        "CREATE OR REPLACE TABLE {t} SHALLOW CLONE {s} VERSION AS OF 0",
        "UPDATE {t} SET v = 'u' WHERE part = 1",
        "RESTORE TABLE {t} TO VERSION AS OF 1",
    ],
    "row tracking": [
        _with("'delta.enableRowTracking' = 'true'"),
        "UPDATE {t} SET v = 'u' WHERE id = 1",
        "MERGE INTO {t} t USING (SELECT 2L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "INSERT INTO {t} SELECT id + 10, part, v FROM {s}",
        "OPTIMIZE {t}",
    ],
    "identity and defaults": [
        (
            "CREATE TABLE {t} (id BIGINT GENERATED ALWAYS AS IDENTITY, v STRING DEFAULT 'd', "
            "twice BIGINT GENERATED ALWAYS AS (CAST(length(v) * 2 AS BIGINT))) USING delta "
            "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
        ),
        "INSERT INTO {t} (v) VALUES ('a'), (DEFAULT)",
        "INSERT INTO {t} (v) SELECT v FROM {s}",
        "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 'e'",
        "INSERT INTO {t} (v) VALUES (DEFAULT)",
        "ALTER TABLE {t} ALTER COLUMN v DROP DEFAULT",
        (
            "MERGE INTO {t} t USING {s} s ON t.v = s.v WHEN MATCHED THEN UPDATE SET v = 'm' "
            "WHEN NOT MATCHED THEN INSERT (v) VALUES (s.v)"
        ),
    ],
    "identity by default": [
        (
            "CREATE TABLE {t} (id BIGINT GENERATED BY DEFAULT AS IDENTITY "
            "(START WITH 10 INCREMENT BY 10), day DATE GENERATED ALWAYS AS (CAST(at AS DATE)), "
            "at TIMESTAMP) USING delta PARTITIONED BY (day)"
        ),
        "INSERT INTO {t} (at) VALUES (timestamp'2026-11-01 12:00:00')",
        "INSERT INTO {t} (id, at) VALUES (100, timestamp'2026-11-02 12:00:00')",
        "ALTER TABLE {t} ALTER COLUMN id SYNC IDENTITY",
        "INSERT INTO {t} (at) VALUES (timestamp'2026-11-02 13:00:00')",
        "DELETE FROM {t} WHERE at < timestamp'2026-11-02 00:00:00'",
    ],
    "type widening": [
        (
            "CREATE TABLE {t} (id INT, f FLOAT, d DECIMAL(4, 1)) USING delta "
            "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        ),
        "INSERT INTO {t} VALUES (1, 1.5, 1.5)",
        "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
        "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
        "INSERT INTO {t} VALUES (3000000000, 2.5, 2.5)",
        (
            "MERGE WITH SCHEMA EVOLUTION INTO {t} t USING (SELECT 2L AS id, 2D AS f, "
            "CAST(12345.25 AS DECIMAL(8, 2)) AS d) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        ),
        "UPDATE {t} SET f = f + 0.25 WHERE id = 1",
    ],
    "variant": [
        "CREATE TABLE {t} (id BIGINT, v VARIANT) USING delta",
        "INSERT INTO {t} SELECT id, parse_json('{{\"a\": [1, null, ' || id || ']}}') FROM {s}",
        "UPDATE {t} SET v = parse_json('\"text\"') WHERE id = 1",
        "DELETE FROM {t} WHERE variant_get(v, '$.a[2]', 'INT') = 2",
    ],
    "upgrades of the protocol": [
        _COPY,
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
        "INSERT INTO {t} SELECT id + 10, part, v FROM {s}",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "DELETE FROM {t} WHERE id = 1",
        (
            "ALTER TABLE {t} SET TBLPROPERTIES "
            "('delta.minReaderVersion' = '3', 'delta.minWriterVersion' = '7')"
        ),
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')",
        "ALTER TABLE {t} ADD COLUMN at TIMESTAMP_NTZ",
        "UPDATE {t} SET at = timestamp_ntz'2026-11-01 12:00:00' WHERE id = 2",
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id >= 0)",
        "ALTER TABLE {t} DROP CONSTRAINT positive",
        "ALTER TABLE {t} DROP FEATURE checkConstraints",
        "ALTER TABLE {t} UNSET TBLPROPERTIES ('delta.enableInCommitTimestamps')",
    ],
    "checkpoints and in-commit timestamps": [
        _with(
            "'delta.checkpointInterval' = '2', 'delta.enableInCommitTimestamps' = 'true', "
            "'delta.checkpointPolicy' = 'v2'"
        ),
        "INSERT INTO {t} SELECT id + 10, part, v FROM {s}",
        "INSERT INTO {t} SELECT id + 20, part, v FROM {s}",
        "DELETE FROM {t} WHERE part = 1",
    ],
}
