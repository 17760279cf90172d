"""Files of Spark's own writer become files of a table: rows and statistics are what they are."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.actions.partition import decode_path
from deltalakedb.errors import ConstraintViolatedError
from deltalakedb.lake import Lake
from deltalakedb.spark.io.scan import scan
from deltalakedb.staging.counting import Counter, Covered
from deltalakedb.staging.fit import fit
from deltalakedb.staging.stage import STAGING_FOLDER
from deltalakedb.table import Table

from support.store import Catalogs

TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def new(lake: Lake, folder: Path, schema: Any, **options: Any) -> Table:
    return lake.create_table(str(folder), location=str(folder), schema=schema, **options)


def written(table: Table, folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The files of a table, each with its statistics; there is nothing else in its folder."""
    files = table.snapshot().files()
    paths = [folder / decode_path(path) for path in files["path"].to_pylist()]
    there = {p for p in folder.rglob("*") if p.is_file() and "_delta_log" not in p.parts}
    assert there == set(paths)
    return list(zip(paths, map(json.loads, files["stats"].to_pylist()), strict=True))


def by_spark(path: Path) -> bool:
    return "parquet-mr" in pq.read_metadata(path).created_by


def test_statistics_from_footers_are_those_of_the_rows(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    frame = spark.sql(
        """
        select id, cast(id % 100 - 50 as tinyint) as tiny, cast(id as smallint) as small,
          cast(-id as int) as int, cast(id / 3 as float) as real, id / 7 as double,
          if(id % 4 = 1, double('NaN'), id / 7) as with_nan,
          if(id < 250, float('NaN'), null) as nothing_else,
          if(id % 2 = 0, double('-Infinity'), double('Infinity')) as endless,
          if(id % 2 = 0, 0.0D, -0.0D) as zero,
          cast(id - 300 as decimal(9, 2)) as little, cast(id - 300 as decimal(18, 4)) as money,
          cast(id - 300 as decimal(38, 10)) as much,
          date_add(date'1500-01-01', cast(id * 400 as int)) as day,
          timestamp_micros(id * 1000003 - 20000000000000000) as at,
          cast(timestamp_micros(id * 1000003) as timestamp_ntz) as local,
          if(id % 3 = 0, null, concat('ключ ', id, repeat('ü', cast(id % 50 as int)))) as text,
          repeat('x', cast(id * 10 as int)) as long_text,
          id % 2 = 0 as bool, cast(cast(id as string) as binary) as bytes,
          if(id % 5 = 0, null, named_struct('a', id, 'b', if(id % 2 = 0, null, 'x'),
             'deep', named_struct('c', id / 2, 'list', array(id)))) as nested,
          array(id, null) as list, map('k', id) as map, cast(null as int) as none,
          id as `odd.name`, cast(X'ff41' as string) as no_utf8
        from range(0, 1000, 1, 3)
        """
    )
    before = spark.conf.get(TIMESTAMPS)
    table = new(lake, tmp_path / "t", frame.schema)
    table.append(frame)
    files = written(table, tmp_path / "t")
    assert len(files) == 3
    for path, stats in files:
        assert by_spark(path)
        frame_of_file = pq.read_table(path, partitioning=None).drop_columns(["no_utf8"])
        assert str(frame_of_file.schema.field("at").type) == "timestamp[us, tz=UTC]"
        exact = recounted(table, frame_of_file)
        for key in ("minValues", "maxValues", "nullCount"):
            stats[key].pop("no_utf8", None)
        # A footer has no count of arrays and maps that are null, and nothing of very long texts.
        for name in ("list", "map"):
            assert name not in stats["nullCount"]
            exact["nullCount"].pop(name)
        assert exact["nullCount"]["nested"]["deep"].pop("list") is not None
        if stats["numRecords"] and "long_text" not in stats["nullCount"]:
            for key in ("minValues", "maxValues", "nullCount"):
                exact[key].pop("long_text")
        assert stats == exact
    assert any("long_text" in stats["maxValues"] for _, stats in files)
    assert spark.conf.get(TIMESTAMPS) == before
    same_rows(scan(spark, table.snapshot()).drop("map"), frame.drop("map"))


def recounted(table: Table, rows: pa.Table) -> dict[str, Any]:
    """The statistics of rows, by the function that counts while it writes."""
    schema = table.snapshot().schema
    known = type(schema)(tuple(f for f in schema.fields if f.name in rows.column_names))
    counter = Counter(Covered(known, [], {}))
    shape = fit(rows.schema, known, table=table.name)
    for batch in rows.to_batches():
        counter.add(shape.apply(batch))
    found: dict[str, Any] = json.loads(counter.stats())
    return found


def same_rows(ours: DataFrame, theirs: DataFrame) -> None:
    assert ours.exceptAll(theirs).isEmpty()
    assert theirs.exceptAll(ours).isEmpty()


def test_partitions_keep_their_values(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    frame = spark.sql(
        """
        select id, case id % 5 when 0 then null when 1 then 'a/b = 100% ü' when 2 then ' x:y '
            when 3 then '%41' else 'plain' end as word,
          if(id % 2 = 0, date'2026-11-16', null) as day, cast(id % 2 as int) - 1 as `a-number`
        from range(0, 100, 1, 2)
        """
    )
    table = new(lake, tmp_path / "t", frame.schema, partition_by=["word", "day", "a-number"])
    table.append(frame)
    files = written(table, tmp_path / "t")
    assert all(by_spark(path) for path, _ in files)
    assert sum(stats["numRecords"] for _, stats in files) == 100
    same_rows(scan(spark, table.snapshot()), frame)
    same_rows(scan(spark, table.snapshot(), where="word = '%41'"), frame.where("word = '%41'"))
    # The same rows, whoever reads them.
    found = table.snapshot().to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(100))
    assert set(found["word"].to_pylist()) == {None, "a/b = 100% ü", " x:y ", "%41", "plain"}


def test_columns_take_their_places_and_widths(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    table = new(
        lake, tmp_path / "t", pa.schema({"Id": pa.int64(), "x": pa.float64(), "y": pa.string()})
    )
    table.append(spark.sql("select float(1.5) as X, 7 as id"))
    # Nothing but what fits by itself: this one is converted value by value.
    table.append(spark.sql("select 8 as x, cast(9 as tinyint) as id"))
    assert sorted(by_spark(path) for path, _ in written(table, tmp_path / "t")) == [False, True]
    assert sorted(table.snapshot().to_arrow().to_pylist(), key=lambda row: row["Id"]) == [
        {"Id": 7, "x": 1.5, "y": None},
        {"Id": 9, "x": 8.0, "y": None},
    ]


def test_what_is_refused_leaves_nothing(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string(), nullable=False)])
    table = new(
        lake, tmp_path / "t", schema, properties={"delta.constraints.positive": "abs(id) = id"}
    )
    table.append(spark.sql("select id, repeat('x', 9000) as text from range(0, 4, 1, 2)"))
    long_texts = "select id, if(id = 3, null, repeat('x', 9000)) as text from range(0, 4, 1, 2)"
    with pytest.raises(ConstraintViolatedError, match="NOT NULL, and 1 of"):
        table.append(spark.sql(long_texts))
    with pytest.raises(ConstraintViolatedError, match="positive"):
        table.append(spark.sql("select -id as id, 'x' as text from range(0, 4, 1, 2)"))
    table.append(spark.sql("select id, 'x' as text from range(0)"))
    files = written(table, tmp_path / "t")
    assert len(files) == 2
    assert all(by_spark(path) for path, _ in files)


def test_what_a_driver_that_died_has_left_goes_by_vacuum(lake: Lake, tmp_path: Path) -> None:
    table = new(lake, tmp_path / "t", pa.schema({"id": pa.int64()}))
    left = tmp_path / "t" / f"{STAGING_FOLDER}1" / "_temporary" / "0" / "part-0.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    other = tmp_path / "t" / "_other" / "part-0.parquet"
    other.parent.mkdir()
    other.write_bytes(b"x")
    os.utime(other, (0, 0))
    table.vacuum(retention_hours=0, allow_short_retention=True)
    assert not left.exists()
    assert other.exists()
