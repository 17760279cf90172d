"""Columns with hyphens, dots, spaces, backticks and other scripts, through everything."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable

from support.profiles import SOAK
from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

MAPPED = {"delta.columnMapping.mode": "name"}
VECTORS = {"delta.enableDeletionVectors": "true"}
PLAIN = ["event-date", "a.b", "tick`ed", "日付", "a'b\"c", "per%cent/"]
MORE = ["select", "Größe", "per%cent", "x/y"]
SPACED = ["my day", "a, b", "k=v", "(odd);{}", "tab\there"]


@pytest.fixture(scope="module")
def url(catalogs: Catalogs) -> Iterator[str]:
    with catalogs.fresh("sqlite") as url:
        yield url


@pytest.fixture(scope="module")
def lake(url: str) -> Iterator[Lake]:
    with deltalakedb.connect(url) as lake:
        yield lake


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class Odd:
    """A table with a partition column, a column and a field of each name, and what it should have.

    All partition columns of a row have the same text, all other columns the same number.
    """

    def __init__(self, spark: SparkSession, lake: Lake, url: str, names: Sequence[str]) -> None:
        self.spark, self.lake, self.url = spark, lake, url
        self.parts = list(names)
        self.values = [f"{name}2" for name in names]
        self.name = f"odd_{len(lake.tables())}"
        self.rows: dict[int, tuple[str, int, int]] = {}

    @property
    def table(self) -> DeltaTable:
        return DeltaTable.forName(self.spark, self.name, catalog=self.lake)

    def frame(self, *ids: int) -> DataFrame:
        made = []
        for i in ids:
            self.rows[i] = (f"p {i % 2}", i * 10, i * 100)
            part, value, field = self.rows[i]
            many = len(self.parts)
            made.append((i, *[part] * many, *[value] * many, (field,) * many))
        columns = ["id long", *(f"{quoted(name)} string" for name in self.parts)]
        columns += [f"{quoted(name)} long" for name in self.values]
        inside = ", ".join(f"{quoted(name)}: int" for name in self.values)
        return self.spark.createDataFrame(made, f"{', '.join(columns)}, s struct<{inside}>")

    def write(self, frame: DataFrame, **options: str) -> Any:
        return frame.write.format("deltalakedb").options(catalog=self.url, **options)

    def read(self, **options: str) -> Any:
        return self.spark.read.format("deltalakedb").options(catalog=self.url, **options)

    def every(self, condition: str, names: Sequence[str], prefix: str = "") -> str:
        return " AND ".join(f"{prefix}{quoted(name)} {condition}" for name in names)

    def check(self, table: DeltaTable | None = None) -> None:
        """By Spark, and without it."""
        rows = {}
        for row in (table or self.table).toDF().collect():
            told = {row[name] for name in self.parts}, {row[name] for name in self.values}
            rows[row.id] = tuple(value for (value,) in (*told, set(row.s)))
        assert rows == self.rows
        if table is None:
            found = self.lake.table(self.name).snapshot().to_arrow().to_pylist()
            assert {r["id"]: (r[self.parts[0]], r[self.values[-1]]) for r in found} == {
                i: row[:2] for i, row in self.rows.items()
            }


@pytest.mark.parametrize(
    ("names", "properties"),
    [
        pytest.param(PLAIN, {}, id="plain"),
        pytest.param([*PLAIN[:3], *SPACED], {**MAPPED, **VECTORS}, id="mapped-vectors"),
        pytest.param([*PLAIN[:3], *SPACED], MAPPED, id="mapped", marks=pytest.mark.soak),
        pytest.param(PLAIN[:3], VECTORS, id="vectors", marks=pytest.mark.soak),
        pytest.param(MORE, {}, id="more", marks=pytest.mark.soak),
    ],
)
def test_any_name_goes_everywhere(
    spark: SparkSession, url: str, tmp_path: Path, names: list[str], properties: dict[str, str]
) -> None:
    with deltalakedb.connect(url) as lake:
        odd = Odd(spark, lake, url, names)
        kept = {"delta.enableChangeDataFeed": "true", **properties}
        options = {f"property.{key}": text for key, text in kept.items()}
        first = odd.write(odd.frame(1, 2), location=str(tmp_path / "t"), **options)
        first.partitionBy(*odd.parts).save(odd.name)
        odd.write(odd.frame(3, 4)).mode("append").save(odd.name)
        odd.check()
        read_by_conditions(odd)
        change_rows(odd)
        replace_rows(odd)
        if properties or SOAK:
            odd.table.optimize().where(odd.every("= 'p 1'", odd.parts)).executeCompaction()
            odd.table.optimize().executeZOrderBy(*odd.values[:3])
            odd.check()
            follow(odd, tmp_path, properties)
        odd.table.restoreToVersion(1)
        assert sorted(row.id for row in odd.table.toDF().collect()) == [1, 2, 3, 4]


def read_by_conditions(odd: Odd) -> None:
    by_part = odd.every("= 'p 1'", odd.parts)
    by_value = f"({odd.every('= 20', odd.values)}) OR ({odd.every('= 400', odd.values, 's.')})"
    for condition, ids in ((by_part, [1, 3]), (by_value, [2, 4])):
        assert sorted(row.id for row in odd.table.toDF(where=condition).collect()) == ids
        loaded = odd.read(where=condition).load(odd.name)
        assert sorted(row.id for row in loaded.collect()) == ids


def change_rows(odd: Odd) -> None:
    table = odd.table
    up = {quoted(name): f"{quoted(name)} + 1" for name in odd.values}
    table.update(odd.every("= 20", odd.values), up)
    inside = {f"t.s.{quoted(name)}": "-1" for name in odd.values}
    table.alias("t").update(odd.every("= 30", odd.values, "t."), inside)
    odd.rows |= {2: ("p 0", 21, 200), 3: ("p 1", 30, -1)}
    odd.check()
    moved = {quoted(name): "'p 0'" for name in odd.parts}
    table.update(f"{odd.every('= ' + repr('p 1'), odd.parts)} AND id = 3", moved)
    table.delete(odd.every("= 40", odd.values))
    odd.rows[3] = ("p 0", 30, -1)
    del odd.rows[4]
    odd.check()
    before = dict(odd.rows)
    source = odd.frame(1, 9).alias("s")
    same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in odd.parts)
    more = {quoted(name): f"s.{quoted(name)} + 5" for name in odd.values}
    merge = table.alias("t").merge(source, f"t.id = s.id AND {same}")
    merge.whenMatchedUpdate(set=more).whenNotMatchedInsertAll().execute()
    odd.rows = {**before, 1: ("p 1", 15, 100), 9: ("p 1", 90, 900)}
    odd.check()


def replace_rows(odd: Odd) -> None:
    some = odd.write(odd.frame(1, 9), replaceWhere=odd.every("= 'p 1'", odd.parts))
    some.mode("overwrite").save(odd.name)
    odd.check()
    dynamic = odd.write(odd.frame(1, 9), partitionOverwriteMode="dynamic")
    dynamic.mode("overwrite").save(odd.name)
    odd.check()


def follow(odd: Odd, folder: Path, properties: dict[str, str]) -> None:
    """The feed of the first update, and a stream of all rows."""
    changes = odd.read(readChangeFeed="true", startingVersion="2", endingVersion="2")
    told = changes.load(odd.name).orderBy("_change_type").collect()
    assert [(row._change_type, {row[name] for name in odd.values}) for row in told] == [
        ("update_postimage", {21}),
        ("update_preimage", {20}),
    ]
    reader = odd.spark.readStream.format("deltalakedb").option("catalog", odd.url)
    copy = f"{odd.name}_copy"
    odd.lake.create_table(
        copy,
        location=str(folder / "copy"),
        schema=odd.table.toDF().schema,
        partition_by=odd.parts,
        properties=properties,
    )
    writer = reader.load(odd.name).writeStream.format("deltalakedb").option("catalog", odd.url)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(copy).awaitTermination()
    odd.check(DeltaTable.forName(odd.spark, copy, catalog=odd.lake))
