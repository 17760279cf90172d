"""Options of `format("deltalakedb")`: each works as Delta has it, or is refused."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.actions import AddFile, RemoveFile
from deltalakedb.actions.partition import decode_path
from deltalakedb.errors import ConfigurationError, DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.spark.source.native_format import SWITCH
from deltalakedb.spark.source.options import KNOWN, NOT_HONOURED, SourceOptions, Use, value_of
from deltalakedb.table import Table

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

# `DeltaOptions.validOptionKeys` of Delta 4.4, without the one that Spark sets for itself.
OF_DELTA = [
    "replaceOn",
    "replaceUsing",
    "targetAlias",
    "replaceWhere",
    "mergeSchema",
    "excludeRegex",
    "overwriteSchema",
    "userMetadata",
    "useNullIntolerantEqualityWithDPO",
    "partitionOverwriteMode",
    "maxFilesPerTrigger",
    "ignoreFileDeletion",
    "ignoreChanges",
    "ignoreDeletes",
    "failOnDataLoss",
    "optimizeWrite",
    "dataChange",
    "startingTimestamp",
    "startingVersion",
    "readChangeFeed",
    "readChangeData",
    "endingTimestamp",
    "endingVersion",
    "compression",
    "maxRecordsPerFile",
    "parquet.writer.version",
    "spark.sql.parquet.outputTimestampType",
    "txnAppId",
    "txnVersion",
    "schemaTrackingLocation",
    "schemaLocation",
    "streamingSourceTrackingId",
    "queryName",
    "checkpointLocation",
    "path",
    "versionAsOf",
    "timestampAsOf",
    "writePartitionColumns",
    "maxBytesPerTrigger",
    "skipChangeCommits",
    "allowSourceColumnDrop",
    "allowSourceColumnRename",
    "allowSourceColumnTypeChange",
]


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark.md"


def refused(*uses: Use, **options: str) -> str:
    with pytest.raises(ConfigurationError) as told:
        SourceOptions.read({"catalog": "sqlite:///x.db", "path": "t", **options}).check(*uses)
    return str(told.value)


def test_every_option_of_delta_is_known_or_refused_by_name() -> None:
    ours = {option.name for option in KNOWN.values()}
    assert set(OF_DELTA) <= ours | set(NOT_HONOURED)
    assert not ours & set(NOT_HONOURED)
    for name in NOT_HONOURED:
        for use in Use:
            assert f"The option {name!r} does not work here" in refused(use, **{name.upper(): "x"})


def test_the_documentation_lists_every_option() -> None:
    section = PAGE.read_text().split("### Options\n")[1].split("\n`replaceWhere` takes")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named == {*(o.name for o in KNOWN.values()), "storage.<name>", "property.<name>"}
    rest = section.split("Names are case-insensitive")[1]
    assert set(re.findall(r"`([^`]+)`", rest)) == set(NOT_HONOURED)


def test_an_option_is_refused_where_it_means_nothing() -> None:
    for option in KNOWN.values():
        for use in set(Use) - set(option.uses):
            valid = {"readChangeFeed": "true"} if use in (Use.READ, Use.READ_STREAM) else {}
            given = {**valid, option.name: _valid(option.name)}
            assert f"The option {option.name!r} does not apply to {use}" in refused(use, **given)
    assert "'property.x' does not apply to spark.read" in refused(Use.READ, **{"property.x": "1"})
    # Beside others, or without them.
    assert "readChangeFeed=true" in refused(Use.READ, startingVersion="1")
    for name in ("versionAsOf", "where", "metadata"):
        given = {"readChangeFeed": "true", name: _valid(name)}
        assert f"readChangeFeed and {name} cannot be combined" in refused(Use.READ, **given)
    given = {"readChangeFeed": "true", "ignoreDeletes": "true"}
    assert "cannot be combined" in refused(Use.READ_STREAM, **given)
    assert "named twice" in refused(Use.READ, table="u")


def _valid(name: str) -> str:
    """A value that an option can have."""
    for text in ("true", "1", "static", "none"):
        try:
            value_of(name, text)
        except ConfigurationError:
            continue
        return "2026-11-01" if "timestamp" in name.lower() else text
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("mergeShema", "mergeSchema"),
        ("OVERWRITE_SCHEMA", "overwriteSchema"),
        ("replacewher", "replaceWhere"),
        ("storag.key", None),
        ("fs.s3a.access.key", "storage.<name>"),
        ("header", "partitionOverwriteMode, replaceWhere"),
    ],
)
def test_an_unknown_option_is_refused(wrong: str, right: str | None) -> None:
    told = refused(Use.WRITE, **{wrong: "secret"})
    assert f"Unknown option {wrong!r}" in told
    assert right is None or right in told
    assert "secret" not in told


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("versionAsOf", "-1"),
        ("versionAsOf", "one"),
        ("endingVersion", "latest"),
        ("startingVersion", "newest"),
        ("readChangeFeed", "yes"),
        ("metadata", ""),
        ("failOnDataLoss", "0"),
        ("mergeSchema", "1"),
        ("overwriteSchema", "on"),
        ("partitionOverwriteMode", "all"),
        ("maxFilesPerTrigger", "0"),
        ("maxBytesPerTrigger", "10 apples"),
        ("targetFileBytes", "0"),
        ("txnVersion", "-5"),
        ("dataChange", "no"),
        ("maxRecordsPerFile", "many"),
        ("compression", "lzo"),
        ("optimizeWrite", "2"),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_can_be(name: str, wrong: str) -> None:
    told = refused(*KNOWN[name.lower()].uses, **{name: wrong})
    assert told.startswith(f"The option {name!r} is {wrong!r}. It is ")


def test_sizes_are_written_as_spark_has_them() -> None:
    sizes = {"7": 7, "10b": 10, "1k": 1024, "2KB": 2048, "3m": 3 << 20, "10g": 10 << 30}
    assert {text: value_of("maxBytesPerTrigger", text) for text in sizes} == sizes


def test_an_option_without_a_value_is_refused() -> None:
    """None in the place of a condition would replace every row of a table."""
    told = refused(Use.WRITE, replaceWhere=None)  # type: ignore[arg-type]
    assert "The option 'replaceWhere' has no value" in told


# --- with Spark ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


@pytest.fixture(params=["source", "driver"])
def way(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Which of the two serves the format."""
    spark.conf.set(SWITCH, "false" if request.param == "source" else "true")
    yield request.param
    spark.conf.unset(SWITCH)


def made(lake: Lake, folder: Path, name: str) -> Table:
    table = lake.create_table(name, location=str(folder), schema=pa.schema({"id": pa.int64()}))
    table.append(pa.table({"id": [1, 2, 3]}))
    return table


def test_options_are_refused_both_ways_and_nothing_is_written(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path, way: str
) -> None:
    table = made(lake, tmp_path / "t", f"{way}.refused")
    kind = PySparkException if way == "source" else ConfigurationError

    def write(**options: Any) -> None:
        writer = spark.range(1).write.format("deltalakedb").options(catalog=url, **options)
        writer.mode("overwrite").save(table.name)

    def read(**options: Any) -> None:
        reader = spark.read.format("deltalakedb").options(catalog=url, **options)
        reader.load(table.name).collect()

    def follow(**options: Any) -> None:
        reader = spark.readStream.format("deltalakedb").options(catalog=url, **options)
        target = {"catalog": url, "checkpointLocation": str(tmp_path / "checkpoint")}
        writer = reader.load(table.name).writeStream.format("deltalakedb").options(**target)
        writer.trigger(availableNow=True).start(table.name).awaitTermination()

    told: list[tuple[Callable[..., None], dict[str, Any], str]] = [
        (write, {"replacewhre": "id = 1"}, "Did you mean 'replaceWhere'"),
        (write, {"versionAsOf": 1}, "does not apply to df.write"),
        (read, {"excludeRegex": "x"}, "excludeRegex"),
        (read, {"startingVersion": 1}, "readChangeFeed=true"),
    ]
    if way == "source":
        told.append((follow, {"replaceWhere": "id = 1"}, "does not apply to spark.read"))
    for act, options, expected in told:
        with pytest.raises(kind, match=re.escape(expected)):
            act(**options)
    assert sorted(table.snapshot().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert table.version == 1


def test_a_table_that_exists_keeps_its_place_and_its_columns(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path, way: str
) -> None:
    table = made(lake, tmp_path / "t", f"{way}.layout")
    kind = PySparkException if way == "source" else ConfigurationError
    told = [
        ({"location": str(tmp_path / "other")}, "The location of table"),
        ({"clusterBy": "id"}, "not clustered by id"),
    ]
    for options, expected in told:
        with pytest.raises(kind, match=expected):
            write(spark.range(1), url, table.name, "append", **options)
    if way == "driver":
        named = spark.range(1).write.format("deltalakedb").options(catalog=url, partitionBy="id")
        with pytest.raises(kind, match="named twice"):
            named.partitionBy("id").mode("append").save(table.name)
    assert table.version == 1
    write(spark.range(1), url, table.name, "append", location=str(tmp_path / "t"))
    assert table.snapshot().version == 2


def write(frame: DataFrame, url: str, name: str, mode: str, **options: Any) -> None:
    frame.write.format("deltalakedb").options(catalog=url, **options).mode(mode).save(name)


def footers(table: Table) -> list[tuple[int, str]]:
    """The rows and the codec of each file, as the file says it."""
    folder = Path(table.location.removeprefix("file://"))
    found = [
        pq.read_metadata(folder / decode_path(path))
        for path in table.snapshot().files()["path"].to_pylist()
    ]
    return sorted((one.num_rows, one.row_group(0).column(0).compression) for one in found)


def test_files_have_the_codec_and_the_number_of_rows_that_are_asked_for(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path, way: str
) -> None:
    table = made(lake, tmp_path / "t", f"{way}.files")
    rows = spark.range(0, 25, 1, 1)
    write(rows, url, table.name, "overwrite", compression="gzip", maxRecordsPerFile=10)
    assert footers(table) == [(5, "GZIP"), (10, "GZIP"), (10, "GZIP")]
    if way == "source":
        return
    write(rows, url, table.name, "overwrite", compression="UNCOMPRESSED", maxRecordsPerFile=0)
    assert footers(table) == [(25, "UNCOMPRESSED")]
    # Spark's own writer has none of this; the table's own codec is as it was.
    write(rows, url, table.name, "overwrite", compression="brotli", maxRecordsPerFile="24")
    assert footers(table) == [(1, "BROTLI"), (24, "BROTLI")]
    write(rows, url, table.name, "overwrite", maxRecordsPerFile=-1)
    assert footers(table) == [(25, "ZSTD")]
    # A table that is created, with partitions.
    some = {"location": str(tmp_path / "new"), "partitionBy": "part", "maxRecordsPerFile": 4}
    parts = rows.selectExpr("id", "id % 2 AS part")
    write(parts, url, "new.files", "error", **some, compression="snappy")
    assert footers(lake.table("new.files")) == [(1, "SNAPPY"), *[(4, "SNAPPY")] * 6]
    with settings(spark, {"spark.sql.files.maxRecordsPerFile": "9"}):
        write(rows, url, table.name, "overwrite", compression="lz4_raw")
    assert [count for count, _ in footers(table)] == [7, 9, 9]


@contextmanager
def settings(spark: SparkSession, changed: dict[str, str]) -> Iterator[None]:
    for name, value in changed.items():
        spark.conf.set(name, value)
    yield
    for name in changed:
        spark.conf.unset(name)


def test_rows_are_shuffled_to_fewer_files(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path
) -> None:
    rows = spark.range(0, 40, 1, 8)
    table = made(lake, tmp_path / "t", "optimized.t")

    def files(**options: str) -> int:
        write(rows, url, table.name, "overwrite", **options)
        assert table.snapshot().to_arrow().num_rows == 40
        return table.snapshot().num_files

    assert (files(), files(optimizeWrite="true"), files(optimizeWrite="false")) == (8, 1, 8)
    # The option goes before the session, and the session before the table.
    table.set_properties({"delta.autoOptimize.optimizeWrite": "true"})
    assert (files(), files(optimizeWrite="false")) == (1, 8)
    with settings(spark, {"spark.databricks.delta.optimizeWrite.enabled": "false"}):
        assert (files(), files(optimizeWrite="true")) == (8, 1)
    with settings(spark, {"spark.sql.adaptive.enabled": "false"}):
        assert files() == 8
        with pytest.raises(ConfigurationError, match=r"spark\.sql\.adaptive\.enabled"):
            files(optimizeWrite="true")
    parts = rows.selectExpr("id", "id % 3 AS part")
    some = {"location": str(tmp_path / "p"), "partitionBy": "part", "optimizeWrite": "true"}
    write(parts, url, "optimized.p", "error", **some)
    assert lake.table("optimized.p").snapshot().num_files == 3
    with (
        settings(spark, {SWITCH: "false"}),
        pytest.raises(PySparkException, match="optimizeWrite does not work here"),
    ):
        files(optimizeWrite="true")


def test_rows_that_only_move_are_no_changes(
    spark: SparkSession, lake: Lake, url: str, tmp_path: Path, way: str
) -> None:
    name = f"{way}.moved"
    table = lake.create_table(
        name,
        location=str(tmp_path / "t"),
        schema=pa.schema({"id": pa.int64(), "part": pa.int64()}),
        partition_by=["part"],
        properties={"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"},
    )
    for n in range(4):
        table.append(pa.table({"id": [n, n + 10], "part": [n % 2] * 2}))
    same = {"dataChange": "false"}
    rows = spark.createDataFrame(table.snapshot().to_arrow().to_pylist()).coalesce(1)
    before = sorted(row["id"] for row in table.snapshot().to_arrow().to_pylist())
    refused: list[tuple[str, DataFrame, dict[str, str], str]] = [
        ("append", rows, {}, "rows are appended"),
        ("overwrite", rows.where("id > 0"), {}, "8 rows would be replaced by 7"),
        ("overwrite", rows, {"replaceWhere": "id >= 0"}, "not about partitions alone"),
        ("overwrite", rows.withColumn("x", rows.id), {"mergeSchema": "true"}, "would change"),
    ]
    kind = PySparkException if way == "source" else DeltaLakeDbError
    # The long way round takes long: what is checked in one place is tried once.
    for mode, frame, options, told in refused if way == "driver" else refused[1:2]:
        with pytest.raises(kind, match=told):
            write(frame, url, name, mode, **same, **options)
    if way == "driver":
        with pytest.raises(ConfigurationError, match="cannot be combined"):
            write(rows, url, name, "overwrite", **same, replaceUsing="id")
        with pytest.raises(DeltaLakeDbError, match="new"):
            write(rows, url, "not.new", "overwrite", **same, location=str(tmp_path / "new"))
    # All rows, those of a partition, those of the partitions that come.
    write(rows, url, name, "overwrite", **same)
    if way == "driver":
        half = rows.where("part = 0")
        write(half, url, name, "overwrite", **same, replaceWhere="part = 0")
        write(half, url, name, "overwrite", **same, partitionOverwriteMode="dynamic")
    assert table.snapshot().num_files == 2
    assert table.version == (7 if way == "driver" else 5)
    for version in range(5, table.version + 1):
        files = [a for a in table.actions(version) if isinstance(a, (AddFile, RemoveFile))]
        assert {file.data_change for file in files} == {False}
        assert {type(file) for file in files} == {AddFile, RemoveFile}
    found = sorted(row["id"] for row in table.snapshot().to_arrow().to_pylist())
    assert found == before
    feed = spark.read.format("deltalakedb").options(catalog=url, readChangeFeed="true")
    assert feed.option("startingVersion", 5).load(name).count() == 0
