"""Every statement of Delta on Spark, on tables of a lake.

After each of them the rows by Spark, by our reader from SQL and by delta-rs from the mirror are the
same, and `verify` reports nothing: on SQLite and Postgres, on a disk and S3, with a local master
and a cluster.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from deltalakedb.spark.delta.embedded import embedded_service
from interop.canonical import differences
from interop.readers import Refused
from spark.delta.lake_spark import agree
from spark.delta.places import FAR, HOME, OpenPlace, at_places
from spark.delta.statements import CLUSTER_LIMITS, ROWS, STORIES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = ("SET ", "RESET ")
_numbers = count()


@pytest.fixture
def names(here: OpenPlace) -> dict[str, str]:
    """Names for the tables of a test; {s} has rows."""
    # Tests of other modules share the session of the first place.
    here.spark.use(embedded_service(here.lake))
    if "statements.source" not in here.lake:
        here.spark.run("CREATE DATABASE IF NOT EXISTS statements")
        here.spark.run(f"CREATE TABLE statements.source USING delta AS {ROWS}")
    return {"t": f"statements.t{next(_numbers)}", "s": "statements.source"}


def run(here: OpenPlace, statement: str) -> bool:
    """Run a statement, or see it refused as it has to be; whether it makes a version."""
    limits = CLUSTER_LIMITS if here.cluster else {}
    for start, error in limits.items():
        if statement.startswith(start):
            with pytest.raises(Refused, match=error):
                here.spark.run(statement)
            return False
    here.spark.run(statement)
    if statement.startswith("VACUUM "):
        # Delta commits its start and its end, but not on S3.
        return here.place.storage == "disk" and "DRY RUN" not in statement
    return not statement.startswith(SETTINGS)


@at_places(HOME)
@pytest.mark.parametrize("story", STORIES)
def test_after_each_statement_all_readers_agree(
    story: str, here: OpenPlace, names: dict[str, str]
) -> None:
    version = -1
    for statement in STORIES[story]:
        commits = run(here, statement.format(**names))
        if statement.startswith(SETTINGS):
            continue
        agree(here.lake, here.spark, names["t"])
        before, version = version, here.lake.table(names["t"]).version
        assert (version > before) == commits, statement
    described = here.spark.sql(f"DESCRIBE HISTORY {names['t']}")
    assert described["version"].to_pylist() == list(range(version, -1, -1))
    history = here.lake.table(names["t"]).history()
    assert [entry.version for entry in history] == described["version"].to_pylist()
    assert [entry.operation for entry in history] == described["operation"].to_pylist()


@at_places(HOME)
def test_a_violated_constraint_changes_nothing(here: OpenPlace, names: dict[str, str]) -> None:
    here.spark.run("CREATE TABLE {t} (id BIGINT NOT NULL) USING delta".format(**names))
    here.spark.run("ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 10)".format(**names))
    with pytest.raises(Refused, match="DELTA_VIOLATE_CONSTRAINT"):
        here.spark.run("INSERT INTO {t} VALUES (10)".format(**names))
    with pytest.raises(Refused, match=r"DELTA_(NOT_NULL|VIOLATE)_CONSTRAINT"):
        here.spark.run("INSERT INTO {t} VALUES (NULL)".format(**names))
    assert agree(here.lake, here.spark, names["t"]).num_rows == 0
    assert here.lake.table(names["t"]).version == 1


@at_places(HOME)
def test_a_shallow_clone_is_a_table_of_the_lake(here: OpenPlace, names: dict[str, str]) -> None:
    here.spark.run("CREATE TABLE {t} SHALLOW CLONE {s}".format(**names))
    here.spark.run("DELETE FROM {t} WHERE id = 1".format(**names))
    assert agree(here.lake, here.spark, names["t"]).num_rows == 8
    assert agree(here.lake, here.spark, names["s"]).num_rows == 9


@at_places(HOME)
@pytest.mark.parametrize("in_commit", ["true", "false"])
def test_versions_by_number_and_by_time(
    in_commit: str, here: OpenPlace, names: dict[str, str]
) -> None:
    here.spark.run(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableInCommitTimestamps' = "
        "'{flag}') AS SELECT * FROM {s}".format(**names, flag=in_commit)
    )
    here.spark.run("DELETE FROM {t} WHERE id < 4".format(**names))
    table = here.lake.table(names["t"])
    instant = table.history()[0].timestamp
    if in_commit == "false":
        # Without in-commit timestamps Spark goes by the times of files: on S3 full seconds.
        instant = next_second()
        next_second()
    here.spark.run("UPDATE {t} SET v = 'x' WHERE id = 8".format(**names))
    timed = f"TIMESTAMP AS OF '{instant.isoformat(sep=' ')}'"
    selected = "SELECT * FROM {t} {at}"
    for at, snapshot in {
        "VERSION AS OF 0": table.snapshot(version=0),
        "VERSION AS OF 2": table.snapshot(version=2),
        timed: table.snapshot(timestamp=instant),
    }.items():
        by_spark = here.spark.sql(selected.format(**names, at=at))
        assert differences(snapshot.to_arrow(), by_spark) == [], at
    assert table.snapshot(timestamp=instant).version == 1
    here.spark.run("RESTORE TABLE {t} TO {at}".format(**names, at=timed))
    restored = agree(here.lake, here.spark, names["t"])
    assert differences(table.snapshot(version=1).to_arrow(), restored) == []


def next_second() -> datetime:
    """Wait until the clock shows another second; that one."""
    start = time.time()
    while int(time.time()) == int(start):
        time.sleep(0.01)
    return datetime.now(UTC)


@at_places(HOME)
def test_changes(here: OpenPlace, names: dict[str, str], tmp_path: Path) -> None:
    here.spark.run(
        "CREATE TABLE {t} USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true') "
        "AS SELECT * FROM {s}".format(**names)
    )
    here.spark.run("DELETE FROM {t} WHERE id < 4".format(**names))
    here.spark.run("UPDATE {t} SET v = 'x' WHERE id = 8".format(**names))
    here.spark.run(
        "MERGE INTO {t} t USING (SELECT id + 7 AS id, 1 AS part, 'm' AS v FROM {s}) s "
        "ON t.id = s.id AND s.id = 7 WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED AND s.id > 14 THEN INSERT *".format(**names)
    )
    agree(here.lake, here.spark, names["t"])
    changes = here.spark.rows(
        f"SELECT _commit_version, _change_type, count(*) FROM table_changes('{names['t']}', 1) "
        "GROUP BY ALL ORDER BY ALL"
    )
    assert changes == [
        (1, "delete", 4),
        (2, "update_postimage", 1),
        (2, "update_preimage", 1),
        (3, "insert", 1),
        (3, "update_postimage", 1),
        (3, "update_preimage", 1),
    ]
    target = f"{names['t']}_changes"
    here.spark.stream(names["t"], target, tmp_path, readChangeFeed="true", startingVersion="1")
    streamed = agree(here.lake, here.spark, target)
    assert streamed.num_rows == sum(count for _, _, count in changes)


@at_places(HOME)
def test_streams_in_both_directions(here: OpenPlace, names: dict[str, str], tmp_path: Path) -> None:
    here.spark.run("CREATE TABLE {t} LIKE {s}".format(**names))
    here.spark.stream(names["s"], names["t"], tmp_path)
    assert agree(here.lake, here.spark, names["t"]).num_rows == 9
    here.lake.table(names["s"]).append([{"id": 90, "part": 0, "v": "ours"}])
    try:
        here.spark.stream(names["s"], names["t"], tmp_path)
        assert agree(here.lake, here.spark, names["t"]).num_rows == 10
    finally:
        here.spark.run("DELETE FROM {s} WHERE id = 90".format(**names))


@at_places(HOME)
def test_vacuum_leaves_only_the_files_of_the_table(here: OpenPlace, names: dict[str, str]) -> None:
    here.spark.run("CREATE TABLE {t} USING delta AS SELECT * FROM {s}".format(**names))
    for _ in range(2):
        here.spark.run("UPDATE {t} SET v = concat(v, '+')".format(**names))
    table = here.lake.table(names["t"])
    storage = here.lake.open_storage(table.location)

    def data_files() -> set[str]:
        # On a disk Hadoop writes a checksum beside each file.
        return {one.key for one in storage.list() if one.key[0] not in "._"}

    live = set(table.snapshot().files(columns=["path"])["path"].to_pylist())
    assert data_files() > live
    setting = "spark.databricks.delta.retentionDurationCheck.enabled"
    here.spark.run(f"SET {setting}=false")
    here.spark.run("VACUUM {t} RETAIN 0 HOURS".format(**names))
    here.spark.run(f"RESET {setting}")
    assert data_files() == live
    agree(here.lake, here.spark, names["t"])


@at_places(HOME)
def test_a_dropped_table_is_gone_and_its_name_is_free(
    here: OpenPlace, names: dict[str, str]
) -> None:
    here.spark.run("CREATE TABLE {t} USING delta AS SELECT * FROM {s}".format(**names))
    storage = here.lake.open_storage(here.lake.table(names["t"]).location)
    here.spark.run("DROP TABLE {t}".format(**names))
    assert names["t"] not in here.lake
    assert list(storage.list()) == []
    here.spark.run("CREATE TABLE {t} (other STRING) USING delta".format(**names))
    here.spark.run("INSERT INTO {t} VALUES ('again')".format(**names))
    assert agree(here.lake, here.spark, names["t"]).num_rows == 1


@at_places(HOME, FAR)
def test_executors_do_not_need_the_package(here: OpenPlace, names: dict[str, str]) -> None:
    """Rows that pass through the Python of the executors; on a cluster it has not our package."""
    here.spark.run(
        "CREATE TABLE {t} USING delta PARTITIONED BY (known) AS SELECT id, part, v, "
        "has_module('deltalakedb') AS known FROM {s}".format(**names)
    )
    rows = agree(here.lake, here.spark, names["t"])
    assert set(rows["known"].to_pylist()) == {here.cluster is None}
    here.spark.run(
        "MERGE INTO {t} t USING (SELECT id + 5 AS id, 7 AS part, 'm' AS v, has_module('pyspark') "
        "AS known FROM {s}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *".format(**names)
    )
    agree(here.lake, here.spark, names["t"])
    here.spark.run("OPTIMIZE {t}".format(**names))
    assert agree(here.lake, here.spark, names["t"]).num_rows == 14
    (detail,) = here.spark.sql("DESCRIBE DETAIL {t}".format(**names)).to_pylist()
    table = here.lake.table(names["t"])
    assert detail["id"] == table.snapshot().metadata.id
    assert detail["numFiles"] == table.snapshot().num_files
    if here.cluster is not None:
        executors = [list(folder.glob("app-*/*")) for folder in here.cluster.folders]
        assert all(executors), "a worker has had no executor"
