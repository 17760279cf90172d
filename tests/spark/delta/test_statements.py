"""Every statement of Delta on Spark, on tables of a lake.

After each of them the rows by Spark, by our reader from SQL and by delta-rs from the mirror are the
same, and `verify` reports nothing.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from deltalakedb.lake import Lake
from interop.readers import Refused
from spark.delta.lake_spark import LakeSpark, agree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_ROWS = "SELECT id, CAST(id % 3 AS INT) AS part, CONCAT('v', id) AS v FROM range(9)"
# {t} is the table, {s} another one with the rows of _ROWS.
STORIES: dict[str, list[str]] = {
    "create and insert": [
        "CREATE TABLE {t} (id BIGINT, part INT, v STRING) USING delta PARTITIONED BY (part)",
        "INSERT INTO {t} SELECT * FROM {s}",
        "INSERT INTO {t} BY NAME SELECT 'n' AS v, 10L AS id, 1 AS part",
        "INSERT INTO {t} REPLACE WHERE part = 1 SELECT 100L, 1, 'only'",
        "INSERT OVERWRITE {t} SELECT * FROM {s} WHERE id < 5",
        "TRUNCATE TABLE {t}",
    ],
    "create or replace": [
        "CREATE TABLE {t} USING delta AS SELECT * FROM {s}",
        "CREATE OR REPLACE TABLE {t} (a INT) USING delta",
        # Delta's own catalog fails on the next statement if the partition columns are not the last.
        (
            "CREATE OR REPLACE TABLE {t} USING delta PARTITIONED BY (part) "
            "AS SELECT id, v, part FROM {s}"
        ),
        "REPLACE TABLE {t} USING delta AS SELECT id FROM {s}",
    ],
    "rows": [
        "CREATE TABLE {t} USING delta AS SELECT * FROM {s}",
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
    ],
    "deletion vectors": [
        (
            "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') "
            "AS SELECT * FROM {s}"
        ),
        "DELETE FROM {t} WHERE id = 3",
        "UPDATE {t} SET part = 9 WHERE id = 4",
        "MERGE INTO {t} t USING (SELECT 5L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "REORG TABLE {t} APPLY (PURGE)",
    ],
    "alter": [
        "CREATE TABLE {t} USING delta AS SELECT * FROM {s}",
        "ALTER TABLE {t} ADD COLUMNS (extra INT COMMENT 'new' AFTER id, n STRUCT<x: INT>)",
        "INSERT INTO {t} SELECT 50L, 1, 2, 'p', named_struct('x', 3)",
        "ALTER TABLE {t} ALTER COLUMN extra COMMENT 'other'",
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id >= 0)",
        "ALTER TABLE {t} DROP CONSTRAINT positive",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true', 'mine' = '1')",
        "ALTER TABLE {t} UNSET TBLPROPERTIES ('delta.appendOnly')",
        "COMMENT ON TABLE {t} IS 'a table'",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {t} RENAME COLUMN v TO w",
        "INSERT INTO {t} SELECT 51L, 1, 2, 'q', NULL",
        "ALTER TABLE {t} DROP COLUMN extra",
        "UPDATE {t} SET w = 'z' WHERE id = 51",
    ],
    "optimize": [
        "CREATE TABLE {t} USING delta AS SELECT * FROM {s}",
        "INSERT INTO {t} SELECT id + 10, part, v FROM {s}",
        "OPTIMIZE {t}",
        "INSERT INTO {t} SELECT id + 20, part, v FROM {s}",
        "OPTIMIZE {t} ZORDER BY (id)",
        "VACUUM {t}",
    ],
    "liquid clustering": [
        "CREATE TABLE {t} (id BIGINT, part INT, v STRING) USING delta CLUSTER BY (id)",
        "INSERT INTO {t} SELECT * FROM {s}",
        "INSERT INTO {t} SELECT id + 10, part, v FROM {s}",
        "OPTIMIZE {t}",
        "ALTER TABLE {t} CLUSTER BY (part)",
        "ALTER TABLE {t} CLUSTER BY NONE",
    ],
    "restore": [
        "CREATE TABLE {t} USING delta AS SELECT * FROM {s}",
        "DELETE FROM {t} WHERE id > 2",
        "RESTORE TABLE {t} TO VERSION AS OF 0",
    ],
    "row tracking": [
        (
            "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableRowTracking' = 'true') "
            "AS SELECT * FROM {s}"
        ),
        "UPDATE {t} SET v = 'u' WHERE id = 1",
        "MERGE INTO {t} t USING (SELECT 2L AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE",
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
    ],
    "type widening": [
        (
            "CREATE TABLE {t} (id INT, f FLOAT) USING delta "
            "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
        ),
        "INSERT INTO {t} VALUES (1, 1.5)",
        "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
        "INSERT INTO {t} VALUES (3000000000, 2.5)",
    ],
    "checkpoints and in-commit timestamps": [
        (
            "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.checkpointInterval' = '2', "
            "'delta.enableInCommitTimestamps' = 'true', 'delta.checkpointPolicy' = 'v2') "
            "AS SELECT * FROM {s}"
        ),
        "INSERT INTO {t} SELECT id + 10, part, v FROM {s}",
        "INSERT INTO {t} SELECT id + 20, part, v FROM {s}",
        "DELETE FROM {t} WHERE part = 1",
    ],
}
_numbers = count()


@pytest.fixture
def names(lake_spark: LakeSpark, shared_lake: Lake) -> dict[str, str]:
    """Names for the tables of a test; {s} has rows."""
    if "statements.source" not in shared_lake:
        lake_spark.run("CREATE DATABASE IF NOT EXISTS statements")
        lake_spark.run(f"CREATE TABLE statements.source USING delta AS {_ROWS}")
    return {"t": f"statements.t{next(_numbers)}", "s": "statements.source"}


@pytest.mark.parametrize("story", STORIES)
def test_after_each_statement_all_readers_agree(
    story: str, lake_spark: LakeSpark, shared_lake: Lake, names: dict[str, str]
) -> None:
    versions = []
    for statement in STORIES[story]:
        lake_spark.run(statement.format(**names))
        agree(shared_lake, lake_spark, names["t"])
        versions.append(shared_lake.table(names["t"]).version)
    described = lake_spark.sql(f"DESCRIBE HISTORY {names['t']}")["version"].to_pylist()
    assert described == list(range(versions[-1], -1, -1))
    assert versions == sorted(versions)
    history = shared_lake.table(names["t"]).history()
    assert [entry.version for entry in history] == described


def test_a_violated_constraint_changes_nothing(
    lake_spark: LakeSpark, shared_lake: Lake, names: dict[str, str]
) -> None:
    lake_spark.run("CREATE TABLE {t} (id BIGINT NOT NULL) USING delta".format(**names))
    lake_spark.run("ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 10)".format(**names))
    with pytest.raises(Refused, match="DELTA_VIOLATE_CONSTRAINT"):
        lake_spark.run("INSERT INTO {t} VALUES (10)".format(**names))
    with pytest.raises(Refused, match=r"DELTA_(NOT_NULL|VIOLATE)_CONSTRAINT"):
        lake_spark.run("INSERT INTO {t} VALUES (NULL)".format(**names))
    assert agree(shared_lake, lake_spark, names["t"]).num_rows == 0
    assert shared_lake.table(names["t"]).version == 1


def test_variants_are_the_same_in_all_readers(
    lake_spark: LakeSpark, shared_lake: Lake, names: dict[str, str]
) -> None:
    lake_spark.run("CREATE TABLE {t} (id BIGINT, v VARIANT) USING delta".format(**names))
    lake_spark.run("INSERT INTO {t} SELECT 1, parse_json('{{\"a\": [1]}}')".format(**names))
    assert lake_spark.rows("SELECT to_json(v) FROM {t}".format(**names)) == [('{"a":[1]}',)]
    table = shared_lake.table(names["t"])
    assert table.version == 1
    assert table.snapshot().to_arrow()["id"].to_pylist() == [1]
    assert table.verify().ok


def test_a_shallow_clone_is_a_table_of_the_lake(
    lake_spark: LakeSpark, shared_lake: Lake, names: dict[str, str]
) -> None:
    lake_spark.run("CREATE TABLE {t} SHALLOW CLONE {s}".format(**names))
    lake_spark.run("DELETE FROM {t} WHERE id = 1".format(**names))
    assert agree(shared_lake, lake_spark, names["t"]).num_rows == 8
    assert agree(shared_lake, lake_spark, names["s"]).num_rows == 9


def test_old_versions_and_changes(
    lake_spark: LakeSpark, shared_lake: Lake, names: dict[str, str]
) -> None:
    lake_spark.run(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true') "
        "AS SELECT * FROM {s}".format(**names)
    )
    lake_spark.run("DELETE FROM {t} WHERE id < 4".format(**names))
    lake_spark.run("UPDATE {t} SET v = 'x' WHERE id = 8".format(**names))
    agree(shared_lake, lake_spark, names["t"])
    table = shared_lake.table(names["t"])
    before = table.history()[1].timestamp.isoformat(sep=" ")
    counted = "SELECT count(*) FROM {t} {at}"
    assert lake_spark.rows(counted.format(**names, at="VERSION AS OF 0")) == [(9,)]
    assert lake_spark.rows(counted.format(**names, at=f"TIMESTAMP AS OF '{before}'")) == [(5,)]
    changes = lake_spark.rows(
        f"SELECT _change_type, count(*) FROM table_changes('{names['t']}', 1) GROUP BY 1 ORDER BY 1"
    )
    assert changes == [("delete", 4), ("update_postimage", 1), ("update_preimage", 1)]


def test_streams_in_both_directions(
    lake_spark: LakeSpark, shared_lake: Lake, names: dict[str, str], tmp_path: Path
) -> None:
    lake_spark.run("CREATE TABLE {t} LIKE {s}".format(**names))
    lake_spark.stream(names["s"], names["t"], tmp_path)
    assert agree(shared_lake, lake_spark, names["t"]).num_rows == 9
    shared_lake.table(names["s"]).append([{"id": 90, "part": 0, "v": "ours"}])
    try:
        lake_spark.stream(names["s"], names["t"], tmp_path)
        assert agree(shared_lake, lake_spark, names["t"]).num_rows == 10
    finally:
        lake_spark.run("DELETE FROM {s} WHERE id = 90".format(**names))
