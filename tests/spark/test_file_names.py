"""Files are told by the names that Spark gives them: ours have to be the same."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import DataFileError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.dml.changes import RowEdit
from deltalakedb.spark.io.paths import java_encoded

from support.store import Catalogs

# Marks of right-to-left text, joiners, soft hyphens: characters that show nothing.
UNSEEN = "a\u200fb\u200d\u00ad\ufeff\u2028 \u00a0\ue000z"
VECTORS = {"delta.enableDeletionVectors": "true"}


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def test_every_character_is_written_as_java_writes_it(spark: SparkSession) -> None:
    uri = spark._jvm.java.net.URI  # type: ignore[union-attr]
    # A slash in front; surrogates are no characters.
    every = [chr(n) for n in range(1, sys.maxunicode + 1) if not 0xD800 <= n <= 0xDFFF]
    for start in range(0, len(every), 65_536):
        path = "/" + "".join(every[start : start + 65_536])
        theirs = uri("file", None, path, None).toString()
        ours = f"file:{java_encoded(path)}"
        if ours != theirs:
            wrong = [c for c in path if f"file:/{java_encoded(c)}" != _java(uri, c)]
            raise AssertionError([f"U+{ord(c):04X}" for c in wrong[:20]])


def _java(uri: object, char: str) -> str:
    return str(uri("file", None, f"/{char}", None).toString())  # type: ignore[operator]


@pytest.mark.parametrize("properties", [{}, VECTORS], ids=["copy", "vectors"])
def test_rows_change_in_files_with_unseen_characters(
    spark: SparkSession, lake: Lake, tmp_path: Path, properties: dict[str, str]
) -> None:
    name = str(tmp_path)
    table = lake.create_table(
        name,
        location=str(tmp_path / UNSEEN),
        schema=pa.schema([("id", pa.int64()), ("v", pa.int64()), ("p", pa.string())]),
        partition_by=["p"],
        properties=properties,
    )
    table.append(pa.table({"id": [1, 2, 3, 4], "v": [0] * 4, "p": [UNSEEN] * 4}))
    target = DeltaTable.forName(spark, name, catalog=lake)
    target.delete("id = 1")
    target.update("id = 2", {"v": "7"})
    news = spark.createDataFrame([(3, 8), (9, 9)], "id long, v long").alias("s")
    merge = target.alias("t").merge(news, "t.id = s.id").whenMatchedUpdate(set={"v": "s.v"})
    merge.whenNotMatchedInsert(values={"id": "s.id", "v": "s.v", "p": f"'{UNSEEN}'"}).execute()
    expected = [(2, 7, UNSEEN), (3, 8, UNSEEN), (4, 0, UNSEEN), (9, 9, UNSEEN)]
    assert sorted(map(tuple, target.toDF().collect())) == expected
    assert sorted(tuple(row.values()) for row in table.snapshot().to_arrow().to_pylist()) == (
        expected
    )


def test_values_by_file_are_found_for_unseen_characters(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """Where folders do not say the values as Spark would read them, files are joined with them."""
    name = str(tmp_path)
    moments = pa.array([datetime(2026, 11, 1, 12, 0, 0, 5, UTC)] * 2, pa.timestamp("us", "UTC"))
    table = lake.create_table(
        name,
        location=str(tmp_path / UNSEEN),
        schema=pa.schema([("id", pa.int64()), ("at", moments.type)]),
        partition_by=["at"],
        properties={"delta.columnMapping.mode": "name"},
    )
    table.append(pa.table({"id": [1, 2], "at": moments}))
    assert DeltaTable.forName(spark, name, catalog=lake).toDF().count() == 2


def test_a_file_that_goes_by_another_name_is_no_reason_to_change_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path)
    ids = pa.schema([("id", pa.int64())])
    table = lake.create_table(name, location=str(tmp_path / "t"), schema=ids)
    table.append(pa.table({"id": [1, 2]}))
    monkeypatch.setattr(RowEdit, "_spark_name", lambda _self, row: f"other:{row['path']}")
    with pytest.raises(DataFileError, match="by a name that the table does not have"):
        DeltaTable.forName(spark, name, catalog=lake).delete("id = 1")
    assert (table.refresh(), table.snapshot().to_arrow().num_rows) == (1, 2)
