"""`format("deltalakedb")` in the driver: what only this way can do, and what it leaves alone."""

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.types import StructType

import deltalakedb
from deltalakedb.errors import (
    CommitRejectedError,
    ConfigurationError,
    ConstraintViolatedError,
    TableExistsError,
    TableNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.spark.api.session import CATALOG, using_lake
from deltalakedb.spark.source.native_format import SWITCH

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs, spark: SparkSession) -> Iterator[Lake]:
    """Of DuckDB, which lets one process in: nothing here may need another."""
    with catalogs.fresh("duckdb") as url, deltalakedb.connect(url) as lake:
        spark.conf.set(CATALOG, url)
        yield lake
        spark.conf.unset(CATALOG)


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    return spark.createDataFrame([(n, n % 2) for n in numbers], "id long, part int").coalesce(1)


def ids(lake: Lake, name: str) -> list[int]:
    return sorted(lake.table(name).snapshot().to_arrow()["id"].to_pylist())


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "_delta_log" not in path.parts]


def test_all_four_modes(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    def write(*numbers: int, **more: Any) -> None:
        writer = rows(spark, *numbers).write.option("location", str(tmp_path / "t"))
        writer.save("modes.t", format="DeltaLakeDb", **more)

    # Without a mode only a new table is written to; there it is, with its rows, in one commit.
    write(1, 2, partitionBy=["part"], txnAppId="job", txnVersion=1)
    table = lake.table("modes.t")
    assert (table.version, table.snapshot().partition_columns) == (0, ("part",))
    history = table.history()[0]
    assert history.commit_info is not None
    assert history.commit_info.operation == "CREATE TABLE AS SELECT"
    for mode in (None, "error", "errorifexists"):
        with pytest.raises(TableExistsError, match=r"modes\.t"):
            write(3, mode=mode)
    write(3, mode="ignore")
    write(3, mode="append", txnAppId="job", txnVersion=1)
    assert ids(lake, "modes.t") == [1, 2]
    write(3, mode="append", partitionBy="part")
    assert ids(lake, "modes.t") == [1, 2, 3]
    write(5, mode="overwrite", replaceWhere="part = 1")
    assert ids(lake, "modes.t") == [2, 5]
    write(4, mode="overwrite")
    assert ids(lake, "modes.t") == [4]
    frame = spark.read.load("modes.t", "deltalakedb", versionAsOf=0, where="id > 1")
    assert [row.id for row in frame.collect()] == [2]


def test_what_cannot_be_written_leaves_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    folder = tmp_path / "t"
    broken: list[tuple[dict[str, str], type[Exception]]] = [
        ({"partitionBy": "nothing"}, CommitRejectedError),
        ({"property.delta.constraints.c": "id < 2"}, ConstraintViolatedError),
    ]
    for options, kind in broken:
        writer = rows(spark, 1, 2).write.format("deltalakedb").option("location", str(folder))
        with pytest.raises(kind):
            writer.options(**options).save("broken.t")
        with pytest.raises(TableNotFoundError):
            lake.table("broken.t")
        assert not files(folder)
    fresh = rows(spark, 1, 2).write.format("deltalakedb").option("location", str(folder))
    with pytest.raises(ConstraintViolatedError, match="overwrite where"):
        fresh.option("replaceWhere", "id < 2").mode("overwrite").save("broken.t")
    for refused, what in (
        (rows(spark, 1).write.bucketBy(2, "id"), "bucketBy"),
        (rows(spark, 1).write.option("path", "x"), "twice"),
        (rows(spark, 1).write.option("txnAppId", "x"), "txnVersion"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            refused.format("deltalakedb").save("broken.t")
    assert not files(folder)
    # One of two that create it at once does, and the other one adds to it.
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(
                rows(spark, n).write.option("location", str(folder)).save,
                "broken.t",
                format="deltalakedb",
                mode="append",
            )
            for n in (1, 2)
        ]
        assert [one.result() for one in made] == [None, None]
    assert ids(lake, "broken.t") == [1, 2]


def test_generated_columns_and_clusters_are_made(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """The data source cannot do this: only Spark evaluates expressions."""
    doubled = rows(spark, 1).withColumn(
        "twice",
        F.lit(2).cast("long").alias("twice", metadata={"delta.generationExpression": "id * 2"}),
    )
    target = doubled.write.format("deltalakedb").option("location", str(tmp_path / "t"))
    target.clusterBy("id").save("made.t")
    rows(spark, 4).write.format("deltalakedb").mode("append").save("made.t")
    snapshot = lake.table("made.t").snapshot()
    assert snapshot.clustering_columns == ("id",)
    assert sorted(snapshot.to_arrow()["twice"].to_pylist()) == [2, 8]
    # Columns may be named, if they are those of the table.
    reader = spark.read.format("deltalakedb")
    assert reader.schema("id long, part int, twice long").load(["made.t"]).count() == 2
    with pytest.raises(ConfigurationError, match="does not have"):
        reader.schema("id string").load("made.t")


def test_other_formats_are_left_alone(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    for kind, name in ((DataFrameReader, "load"), (DataFrameWriter, "save")):
        wrapped = getattr(kind, name)
        original = wrapped.__deltalakedb_original__
        assert not hasattr(original, "__deltalakedb_original__")
        assert inspect.signature(wrapped) == inspect.signature(original)
        assert wrapped.__doc__ == original.__doc__
    path = str(tmp_path / "p")
    rows(spark, 1, 2).write.save(path, "parquet", "error", "part", compression="none")
    frame = spark.read.load(path, schema=StructType().add("id", "long"), format="parquet")
    assert sorted(row.id for row in frame.collect()) == [1, 2]
    with pytest.raises(TypeError, match="argument"):
        spark.read.load("a", "b", "c", "d")  # type: ignore[call-arg]
    # A lake that is open is used; else one is opened, and closed.
    url = lake.store.dialect.url.display
    with using_lake(url, {}) as same:
        assert same is lake
    with using_lake(url, {"allow_http": "true"}) as other:
        assert other is not lake
    assert other.closed
    spark.conf.set(SWITCH, "false")
    try:
        with pytest.raises(Exception, match="ErrorIfExists"):
            rows(spark, 1).write.format("deltalakedb").option("catalog", url).save("x.y")
    finally:
        spark.conf.unset(SWITCH)


def test_a_folder_may_be_called_like_a_file(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    frame = spark.sql("SELECT id, 'orders.parquet' AS src FROM range(3)")
    writer = frame.write.format("deltalakedb").option("location", str(tmp_path / "t"))
    writer.partitionBy("src").save("named.like.a.file")
    read = spark.read.format("deltalakedb").load("named.like.a.file")
    assert sorted(map(tuple, read.collect())) == [(n, "orders.parquet") for n in range(3)]
