"""PySpark is changed by `enable` alone, and `disable` undoes it; both ways give the same rows."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter, DataFrameWriterV2

import deltalakedb
from deltalakedb.errors import InvalidArgumentError, UnsupportedFeatureError
from deltalakedb.spark import DeltaTable, disable, enable, register
from deltalakedb.spark.source.native_format import SWITCH

from support.store import Catalogs

CLASSES = (SparkSession, DataFrameReader, DataFrameWriter, DataFrameWriterV2)
IMPORTING = """
import json, sys
from pyspark.sql import DataFrame, SparkSession, readwriter
kinds = [DataFrame, SparkSession, *(k for k in vars(readwriter).values() if isinstance(k, type))]
before = [dict(vars(kind)) for kind in kinds]
import pyspark_deltalakedb
from deltalakedb.spark import DeltaTable, disable, enable, register
from deltalakedb.spark import extension
changed = [
    f"{kind.__name__}.{name}"
    for kind, old in zip(kinds, before)
    for name in {*old, *vars(kind)}
    if name not in ("__abstractmethods__", "_abc_impl")
    and old.get(name) is not vars(kind).get(name)
]
print(json.dumps([len(kinds), changed]))
"""


@pytest.fixture(autouse=True)
def disabled() -> Iterator[None]:
    disable()
    yield
    disable()


def attributes() -> list[dict[str, object]]:
    return [dict(vars(kind)) for kind in CLASSES]


def test_an_import_changes_nothing_of_pyspark() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], check=True, capture_output=True, text=True
    )
    kinds, changed = json.loads(done.stdout)
    assert kinds > 4
    assert changed == []


def test_only_enable_changes_pyspark_and_disable_restores_it(
    spark: SparkSession, catalogs: Catalogs, tmp_path: Path
) -> None:
    before = attributes()
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        schema = pa.schema([("id", pa.int64())])
        table = lake.create_table("t", location=str(tmp_path / "t"), schema=schema)
        table.append(spark.range(3))
        target = DeltaTable.forName(spark, "t", catalog=lake)
        target.delete("id = 1")
        register(spark, lake, ["t"])
        lake.sql(spark, "SELECT * FROM t").collect()
        spark.sql("DROP VIEW t")
        assert attributes() == before, "our own API needs no wrappers"

        reader = spark.read.format("deltalakedb").option("catalog", url)
        by_source = reader.load("t")
        assert by_source.inputFiles() == []
        enable(spark)
        enabled = attributes()
        assert enabled != before
        enable(spark)
        assert attributes() == enabled, "a second call changes nothing"
        by_scan = reader.load("t")
        assert by_scan.inputFiles() != []
        assert sorted(by_scan.collect()) == sorted(by_source.collect())
        spark.conf.set(SWITCH, "false")
        try:
            assert reader.load("t").inputFiles() == []
        finally:
            spark.conf.unset(SWITCH)
        disable()
        disable()
        assert attributes() == before
        assert reader.load("t").inputFiles() == []


def test_a_table_of_sparks_catalog_is_refused_without_enable_too(
    spark: SparkSession, catalogs: Catalogs, tmp_path: Path
) -> None:
    """Where it is defined, or where it is first used: no row is lost."""
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        schema = pa.schema([("id", pa.int64())])
        table = lake.create_table("t", location=str(tmp_path / "t"), schema=schema)
        options = f"OPTIONS (catalog '{url}', path 't')"
        for statement in (
            f"CREATE TABLE made USING deltalakedb {options}",
            f"CREATE TABLE made USING deltalakedb {options} AS SELECT 1L AS id",
        ):
            with pytest.raises(Exception, match="deltalakedb"):
                spark.sql(statement)
        frame = spark.range(1)
        with pytest.raises(Exception, match="No table is named"):
            frame.write.format("deltalakedb").option("catalog", url).saveAsTable("made")
        with pytest.raises(Exception, match="No table is named"):
            frame.writeTo("made").using("deltalakedb").option("catalog", url).create()
        assert "made" not in {one.name for one in spark.catalog.listTables()}
        # Spark does not ask the data source where the columns are listed.
        spark.sql(f"CREATE TABLE made (id BIGINT) USING deltalakedb {options}")
        try:
            for use in ("SELECT * FROM made", "INSERT INTO made VALUES (1)"):
                with pytest.raises(Exception, match="No table is named"):
                    spark.sql(use).collect()
        finally:
            spark.sql("DROP TABLE made")
        assert table.version == 0


def test_enable_takes_a_classic_session() -> None:
    before = attributes()
    with pytest.raises(InvalidArgumentError, match="Spark session"):
        enable("spark")  # type: ignore[arg-type]

    class Remote:
        createDataFrame = conf = None  # noqa: N815 - PySpark's

    Remote.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(UnsupportedFeatureError, match="Spark Connect"):
        enable(Remote())  # type: ignore[arg-type]
    assert attributes() == before
