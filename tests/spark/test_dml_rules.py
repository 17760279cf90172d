"""DELETE and UPDATE by the letter: one instant, values that fit, structs, names, conditions."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import deltalakedb
from deltalakedb.errors import (
    ConstraintViolatedError,
    InvalidConditionError,
    SchemaMismatchError,
)
from deltalakedb.lake import Lake
from deltalakedb.snapshot import Snapshot
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.dml.conditions import resolved
from deltalakedb.spark.source.feed import feed_frame
from deltalakedb.spark.source.options import SourceOptions
from deltalakedb.table import Table
from spark.ways import VECTORS, WAYS

from support.profiles import SOAK
from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


@contextmanager
def setting(spark: SparkSession, **settings: str) -> Iterator[None]:
    """Settings of SQL for a while, with `_` for a dot."""
    named = {f"spark.sql.{name.replace('_', '.')}": value for name, value in settings.items()}
    for name, value in named.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in named:
            spark.conf.unset(name)


def plain(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: plain(one) for name, one in value.asDict().items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def rows(table: DeltaTable) -> list[Any]:
    return sorted((plain(row) for row in table.toDF().collect()), key=lambda row: row["id"])


# --- one instant --------------------------------------------------------------------------

STEP = timedelta(milliseconds=20)


def moments(lake: Lake, folder: Path, properties: dict[str, str]) -> Table:
    """A row for each moment of the next while, dealt out to files; two files lie in the past."""
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("seen", pa.bool_())]
    )
    table = lake.create_table(
        str(folder), location=str(folder), schema=schema, properties=properties
    )
    now = datetime.now(UTC)
    for start in (-2000, -1000):
        append(table, range(start, start + 100), now)
    for offset in range(3):
        append(table, range(offset, 6000, 3), now)
    return table


def append(table: Table, ids: range, now: datetime) -> None:
    at = pa.array([now + i * STEP for i in ids], pa.timestamp("us", "UTC"))
    table.append(pa.table({"id": list(ids), "at": at, "seen": [False] * len(at)}))


@pytest.mark.parametrize("properties", WAYS)
def test_a_condition_on_the_time_is_of_one_instant(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    table = moments(lake, tmp_path / "updated", properties)
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    (told,) = target.update("at < current_timestamp()", {"seen": "true"}).collect()
    found = table.snapshot().to_arrow().sort_by("at").to_pylist()
    assert [row["id"] for row in found] == sorted(row["id"] for row in found)
    assert len(found) == 6200, "rows are lost or there twice"
    seen = [row["seen"] for row in found]
    assert seen == sorted(seen, reverse=True), "some were looked at later than others"
    assert told.num_affected_rows == sum(seen)

    gone = moments(lake, tmp_path / "deleted", properties)
    before = gone.snapshot().to_arrow().sort_by("at")["id"].to_pylist()
    target = DeltaTable.forName(spark, gone.name, catalog=lake)
    (told,) = target.delete(F.col("at") < F.now()).collect()
    left = gone.snapshot().to_arrow().sort_by("at")["id"].to_pylist()
    assert before[told.num_affected_rows :] == left
    if "delta.enableChangeDataFeed" in properties:
        changes = feed(spark, lake, gone)
        assert (
            sorted(row.id for row in changes if row._change_type == "delete")
            == before[: told.num_affected_rows]
        )


def feed(spark: SparkSession, lake: Lake, table: Table) -> list[Row]:
    given = {"path": table.name, "catalog": "here", "readChangeFeed": "true"}
    first = str(table.snapshot().version)
    return feed_frame(
        spark, lake, SourceOptions.read({**given, "startingVersion": first})
    ).collect()


def test_a_condition_that_asks_for_the_time_is_of_one_instant_from_then_on(
    spark: SparkSession,
) -> None:
    frame = spark.sql("SELECT 1L AS id, timestamp'2026-11-01' AS at, date'2026-11-01' AS `my day`")
    for steady in ("id = 1", "id % 3 = 0 OR at > '2026-11-01'", F.col("my day") == "2026-11-01"):
        found = resolved(steady, frame)
        assert (found.value is steady, found.steady) == (True, True), steady
    for written in (
        "at < now()",
        "`my day` = current_date",
        "at < localtimestamp() AND id > 3",
        F.col("at") < F.current_timestamp(),
        "id < unix_timestamp()",
        "at < timestamp'now'",
        "`my day` < cast('today' AS date)",
        "`my day` < date_sub(current_date(), 30) OR at > now() - INTERVAL 1 HOUR",
    ):
        found = resolved(written, frame)
        assert found.steady, written
        assert found.value is not written, written
        # Nothing of it is left to ask.
        assert resolved(found.value, frame).value is found.value
        assert not isinstance(written, str) or found.original == written
    # What Spark does not read back as the same stays as it was written: rows are told by position.
    odd = "coalesce(at, now()) < nvl(at, now()) - INTERVAL 2 DAYS"
    assert (resolved(odd, frame).value, resolved(odd, frame).steady) == (odd, False)
    past = resolved("`my day` < date_sub(current_date(), 30)", frame)
    assert re.fullmatch(r"\(`my day` < DATE '\d{4}-\d\d-\d\d'\)", str(past.text))


@pytest.mark.parametrize("properties", WAYS)
def test_other_tables_are_asked_once(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    """What a subquery finds may change: its answers count, and not those of the next query."""
    ids = tmp_path / "ids"
    spark.range(4).coalesce(1).write.parquet(str(ids))
    spark.read.parquet(str(ids)).createOrReplaceTempView("some_ids")
    try:
        name = f"subquery {' '.join(properties)}".strip()
        table = tagged(spark, lake, tmp_path, name, **properties)
        condition = "x IN (SELECT id FROM some_ids) AND x <> 2"
        assert not resolved(condition, table.toDF()).steady
        assert table.update(condition, {"x": "x + 100"}).collect()[0].num_affected_rows == 3
        assert [row["x"] for row in rows(table)] == [100, 101, 2, 103, 4, 5]
        deleted = table.delete("x > 2 AND x % 100 IN (SELECT id FROM some_ids WHERE id > 0)")
        assert deleted.collect()[0].num_affected_rows == 2
        assert [row["x"] for row in rows(table)] == [100, 2, 4, 5]
    finally:
        spark.catalog.dropTempView("some_ids")


def test_a_partition_of_the_past_goes_without_being_read(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    day = pa.array([date(2020, 1, 1), date(9999, 1, 1)])
    table = lake.create_table(
        "days",
        location=str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64()), ("day", pa.date32())]),
        partition_by=["day"],
    )
    table.append(pa.table({"id": [1, 2], "day": day}))
    for path in tmp_path.rglob("*.parquet"):
        path.write_bytes(b"nothing to read")
    target = DeltaTable.forName(spark, "days", catalog=lake).alias("t")
    (told,) = target.delete("t.day < date_sub(current_date(), 30)").collect()
    assert told.num_affected_rows == 1
    info = table.history(1)[0].commit_info
    assert info is not None
    assert "current_date()" in str(info.operation_parameters)


# --- structs ------------------------------------------------------------------------------


def test_a_field_is_set_where_the_struct_is_null(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    columns = "id long, s struct<a: int, b: string, deep: struct<`c.d`: long, e: long>>"
    frame = spark.createDataFrame([(1, None), (2, (1, "b", None)), (3, (1, "b", (2, 3)))], columns)
    lake.create_table_as("fields", frame, location=str(tmp_path / "t"))
    table = DeltaTable.forName(spark, "fields", catalog=lake)
    table.update(None, {"s.a": "id", "s.deep.`c.d`": "id * 10"})
    assert rows(table) == [
        {"id": 1, "s": {"a": 1, "b": None, "deep": {"c.d": 10, "e": None}}},
        {"id": 2, "s": {"a": 2, "b": "b", "deep": {"c.d": 20, "e": None}}},
        {"id": 3, "s": {"a": 3, "b": "b", "deep": {"c.d": 30, "e": 3}}},
    ]
    # A value of its own for the struct, and none.
    table.update("id = 1", {"s": "null"})
    table.update("id = 2", {"s.deep": "null"})
    assert [row["s"] and row["s"]["deep"] for row in rows(table)] == [
        None,
        None,
        {"c.d": 30, "e": 3},
    ]
    source = spark.sql("SELECT 1L AS id, 7 AS v")
    merge = table.alias("t").merge(source.alias("s"), "t.id = s.id")
    merge.whenMatchedUpdate(set={"t.s.deep.e": "s.v"}).execute()
    assert rows(table)[0]["s"] == {"a": None, "b": None, "deep": {"c.d": None, "e": 7}}


def test_a_struct_that_was_null_keeps_the_rules_of_its_fields(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    inner = pa.struct([pa.field("a", pa.int64()), pa.field("must", pa.int64(), nullable=False)])
    table = lake.create_table(
        "must", location=str(tmp_path / "t"), schema=pa.schema([("id", pa.int64()), ("s", inner)])
    )
    table.append(pa.table({"id": [1], "s": pa.array([None], inner)}))
    target = DeltaTable.forName(spark, "must", catalog=lake)
    with pytest.raises(ConstraintViolatedError, match=r"s\.must"):
        target.update("id = 1", {"s.a": "1"})
    target.update("id = 1", {"s.a": "1", "s.must": "2"})
    assert rows(target) == [{"id": 1, "s": {"a": 1, "must": 2}}]


# --- values that do not fit ---------------------------------------------------------------

TYPES = "id long, tiny tinyint, n int, d decimal(4,2), day date, many array<int>, s struct<x: int>"
WRONG = {
    "tiny": "300",
    "n": "'many'",
    "d": "cast(123.45 as decimal(10,2))",
    "day": "'no day'",
    "many": "array(1L, 3000000000L)",
    "s": "named_struct('x', 3000000000L)",
    "s.x": "3000000000L",
}


def typed(spark: SparkSession, lake: Lake, folder: Path) -> DeltaTable:
    name = f"typed_{folder.name}_{len(lake.tables())}"
    frame = spark.createDataFrame([(1, 1, 1, None, None, [1], (1,))], TYPES)
    lake.create_table_as(name, frame, location=str(folder / name))
    return DeltaTable.forName(spark, name, catalog=lake)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_value_that_does_not_fit_is_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path, ansi: str
) -> None:
    table = typed(spark, lake, tmp_path)
    files = sorted(path.name for path in tmp_path.rglob("*.parquet"))
    source = spark.sql("SELECT 1L AS id").alias("s")
    with setting(spark, ansi_enabled=ansi):
        for column, value in WRONG.items():
            if not SOAK and ansi == "true" and column not in ("tiny", "s.x"):
                continue
            with pytest.raises(SchemaMismatchError, match=f"does not fit column '{column}"):
                table.update("id = 1", {column: value})
            if not SOAK and column not in ("day", "s.x"):
                continue
            merge = table.alias("t").merge(source, "t.id = s.id")
            with pytest.raises(SchemaMismatchError, match="does not fit"):
                merge.whenMatchedUpdate(set={f"t.{column}": value}).execute()
        merge = table.alias("t").merge(source, "t.id = s.id + 1")
        with pytest.raises(SchemaMismatchError, match="'300' does not fit column 'tiny'"):
            merge.whenNotMatchedInsert(values={"id": "s.id", "tiny": "300"}).execute()
        with pytest.raises(SchemaMismatchError, match="'n' is int"):
            table.update("id = 1", {"n": "date'2026-11-01'"})
    assert rows(table)[0]["tiny"] == 1
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == files
    # What fits is converted.
    with setting(spark, ansi_enabled=ansi):
        fit = {
            "tiny": "30L",
            "n": "'7'",
            "d": "1.5",
            "day": "'2026-11-02'",
            "s.x": "9L",
            "many": "array(5L)",
        }
        table.update("id = 1", fit)
    (row,) = rows(table)
    assert (row["tiny"], row["n"], str(row["d"]), str(row["day"])) == (30, 7, "1.50", "2026-11-02")
    assert (row["s"], row["many"]) == ({"x": 9}, [5])


def test_the_policy_of_the_session_decides(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = typed(spark, lake, tmp_path)
    with setting(spark, ansi_enabled="false", storeAssignmentPolicy="LEGACY"):
        table.update("id = 1", {"tiny": "300", "n": "'many'"})
    assert (rows(table)[0]["tiny"], rows(table)[0]["n"]) == (44, None)
    with setting(spark, storeAssignmentPolicy="STRICT"):
        with pytest.raises(SchemaMismatchError, match="STRICT"):
            table.update("id = 1", {"tiny": "30"})
        table.update("id = 1", {"n": "cast(3 as tinyint)", "id": "n"})
    assert rows(table)[0]["n"] == 3


# --- conditions ---------------------------------------------------------------------------


def tagged(
    spark: SparkSession, lake: Lake, folder: Path, name: str, **properties: str
) -> DeltaTable:
    """Six rows in three files."""
    frame = spark.range(6, numPartitions=1).selectExpr(
        "id",
        "id % 2 = 0 AS flag",
        "map('env', if(id < 3, 'x', 'y')) AS tags",
        'concat("it\'s ", id) AS word',
        "id AS x",
    )
    table = lake.create_table(
        name, location=str(folder / name), schema=frame.schema, properties=properties
    )
    for start in (0, 2, 4):
        table.append(frame.where(f"id BETWEEN {start} AND {start + 1}"))
    return DeltaTable.forName(spark, name, catalog=lake)


CONDITIONS = {
    "t.id = 3": [3],
    "T.`id` > 1 AND id < 4 AND t.flag": [2],
    "tags.env = 'x'": [0, 1, 2],
    "t.tags['env'] = 'y' AND t.id <> 5": [3, 4],
    "id = 3 -- note": [3],
    "id /* this one */ = 4": [4],
    "word = 'it''s 2' OR word = \"it's 4\" OR word = 'it\\'s 5'": [2, 4, 5],
    "flag IS TRUE": [0, 2, 4],
}


def test_whatever_spark_understands_is_a_condition(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = tagged(spark, lake, tmp_path, "conditions").alias("t")
    expected = {i: i for i in range(6)}
    for condition, ids in CONDITIONS.items():
        assert sorted(row.id for row in table.toDF(where=condition).collect()) == ids, condition
        (told,) = table.update(condition, {"t.x": "t.x + 100"}).collect()
        assert told.num_affected_rows == len(ids), condition
        expected |= {i: expected[i] + 100 for i in ids}
        assert {row["id"]: row["x"] for row in rows(table)} == expected, condition
    with setting(spark, ansi_enabled="false"):
        assert sorted(row.id for row in table.toDF(where="flag = 1").collect()) == [0, 2, 4]
        assert table.delete("t.flag = 1 AND t.id = 2").collect()[0].num_affected_rows == 1
    table.delete(F.col("t.id") == 4)
    table.delete("t.id = 3 -- gone")
    assert [row["id"] for row in rows(table)] == [0, 1, 5]


def test_files_are_found_by_an_alias_too(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    table = tagged(spark, lake, tmp_path, "aliased")
    before = set(lake.table("aliased").snapshot().files()["path"].to_pylist())
    table.alias("t").update("t.id = 3", {"t.x": "0"})
    after = set(lake.table("aliased").snapshot().files()["path"].to_pylist())
    assert len(before & after) == 2


@pytest.mark.parametrize("properties", [{}, VECTORS], ids=["copy", "vectors"])
def test_files_may_be_named_in_a_condition(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    name = f"named_{len(properties)}"
    table = tagged(spark, lake, tmp_path, name, **properties)
    table.delete("id = 2")
    files = table.toDF(metadata=True).selectExpr("id", "_metadata.file_name AS file").collect()
    (file,) = (row.file for row in files if row.id == 3)
    condition = f"_metadata.file_name = '{file}'"
    assert [row.id for row in table.toDF(where=condition, metadata=True).collect()] == [3]
    table.delete(F.col("_metadata.file_name") == file)
    assert [row["id"] for row in rows(table)] == [0, 1, 4, 5]


def test_texts_are_read_as_the_session_reads_them(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = lake.create_table(
        "texts",
        location=str(tmp_path / "t"),
        schema=pa.schema([("id", pa.int64()), ("s", pa.string())]),
    )
    for number, text in enumerate((r"a\tb", "a\tb", "its", "it's")):
        table.append(pa.table({"id": [number], "s": [text]}))
    target = DeltaTable.forName(spark, "texts", catalog=lake)

    def found(condition: str) -> list[int]:
        return sorted(row.id for row in target.toDF(where=condition).collect())

    assert found(r"s = 'a\tb'") == [1]
    with setting(spark, parser_escapedStringLiterals="true"):
        assert found(r"s = 'a\tb'") == [0]
    assert found("s = 'it''s'") == [3]
    with setting(spark, legacy_consecutiveStringLiterals_enabled="true"):
        assert found("s = 'it''s'") == [2]


@pytest.mark.parametrize("wrong", ["nope = 1", "id = ", "t.id = 1", "id", "rand() < 0.5", ""])
def test_what_spark_refuses_is_told(
    spark: SparkSession, lake: Lake, tmp_path: Path, wrong: str
) -> None:
    name = f"refused {wrong}".strip()
    table = tagged(spark, lake, tmp_path, name)
    with pytest.raises(InvalidConditionError):
        table.delete(wrong)
    with pytest.raises(InvalidConditionError):
        table.update(wrong, {"x": "1"})
    with pytest.raises(InvalidConditionError, match="'x'"):
        table.update("id = 1", {"x": wrong.replace("id", "no.id").replace("rand", "no_rand")})
    if "rand" not in wrong:
        with pytest.raises(InvalidConditionError):
            table.toDF(where=wrong)
    assert lake.table(name).snapshot().version == 3


# --- work ---------------------------------------------------------------------------------


def test_no_change_lists_files_that_it_does_not_need(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tagged(spark, lake, tmp_path, "listed")
    listed: list[int] = []
    files = Snapshot.files

    def counted(self: Snapshot, *args: Any, **kwargs: Any) -> Any:
        found = files(self, *args, **kwargs)
        listed.append(found.num_rows)
        return found

    monkeypatch.setattr(Snapshot, "files", counted)
    table.delete("id = 3")
    table.update("id = 4", {"x": "0"})
    source = spark.sql("SELECT 1L AS id, 5L AS x").alias("s")
    merge = table.alias("t").merge(source, "t.id = s.id")
    merge.whenMatchedUpdate(set={"x": "s.x"}).whenNotMatchedInsert(values={"id": "s.id"}).execute()
    assert listed == [1, 1, 1]


def test_a_merge_leaves_nothing_with_the_executors(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = tagged(spark, lake, tmp_path, "released")
    held = spark.sparkContext._jsc.getPersistentRDDs
    before = set(held().keySet())
    source = spark.sql("SELECT 1L AS id, 5L AS x").alias("s")
    for set_to in ("s.x", "raise_error('no')"):
        merge = table.alias("t").merge(source, "t.id = s.id")
        merge = merge.whenMatchedUpdate(set={"x": set_to})
        merge = merge.whenNotMatchedInsert(values={"id": "s.id"})
        if set_to == "s.x":
            merge.execute()
        else:
            with pytest.raises(PySparkException, match="no"):
                merge.execute()
        assert set(held().keySet()) <= before


def test_an_hour_that_is_there_twice(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """The text of a time in autumn may mean two; a Column means one."""
    moment = pa.array([datetime(2026, 10, 25, 0, 40, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    table = lake.create_table(
        str(tmp_path), location=str(tmp_path / "t"), schema=pa.schema([("ts", moment.type)])
    )
    table.append(pa.table({"ts": moment}))
    target = DeltaTable.forName(spark, str(tmp_path), catalog=lake)
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        later = F.lit(datetime(2026, 10, 25, 1, 30, tzinfo=UTC))
        source = spark.createDataFrame([(1,)], "x int").alias("s")
        merge = target.alias("t").merge(source, F.col("t.ts") < later)
        merge.whenMatchedUpdate(set={"ts": "t.ts"}).execute()
        assert table.history(1)[0].operation_metrics["numTargetRowsUpdated"] == "1"
        target.delete(F.col("ts") < later)
        assert target.toDF().count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
