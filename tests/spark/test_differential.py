"""Random operations on Spark and on plain rows in memory: the same rows after each, and before.

Predicates and assignments come in pairs, as SQL and as Python, with SQL's idea of null. Every few
steps old versions are compared too, and other engines read the mirrored table.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.table import Table

from fix_store import Catalogs

Row = tuple[Any, ...]
COLUMNS = ["id", "part", "v", "word"]
SCHEMA = pa.schema(
    [("id", pa.int64()), ("part", pa.string()), ("v", pa.int64()), ("word", pa.string())]
)
PARTS = ["a", "b/c", "ü %", None]
WORDS = ["x", "it's", "", None, "long" * 10]
SOAK = bool(os.environ.get("DELTALAKEDB_SOAK"))


class Condition(NamedTuple):
    """The same condition twice; Python's gives None where SQL's is unknown."""

    sql: str
    holds: Callable[[Row], bool | None]


def _compare(i: int, test: Callable[[Any], bool]) -> Callable[[Row], bool | None]:
    return lambda row: None if row[i] is None else test(row[i])


def condition(rng: random.Random) -> Condition:
    n = rng.randrange(60)
    part = rng.choice(PARTS[:3])
    word = rng.choice(["x", "it's"])
    quoted = word.replace("'", "\\'")
    return rng.choice(
        [
            Condition(f"id = {n}", _compare(0, lambda x: x == n)),
            Condition(f"id > {n}", _compare(0, lambda x: x > n)),
            Condition(f"id % 7 = {n % 7}", _compare(0, lambda x: x % 7 == n % 7)),
            Condition(f"part = '{part}'", _compare(1, lambda x: x == part)),
            Condition("part IS NULL", lambda row: row[1] is None),
            Condition(f"v < {n} AND word = '{quoted}'", _both(n, word)),
            Condition("word IS NOT NULL", lambda row: row[3] is not None),
            Condition(
                f"id IN ({n}, {n + 1}, {n + 2})", _compare(0, lambda x: x in (n, n + 1, n + 2))
            ),
        ]
    )


def _both(n: int, word: str) -> Callable[[Row], bool | None]:
    def test(row: Row) -> bool | None:
        parts = [
            None if row[2] is None else row[2] < n,
            None if row[3] is None else row[3] == word,
        ]
        return False if False in parts else None if None in parts else True

    return test


def new_rows(rng: random.Random, count: int) -> list[Row]:
    return [
        (
            rng.randrange(60) if rng.random() > 0.05 else None,
            rng.choice(PARTS),
            rng.choice([None, rng.randrange(100)]),
            rng.choice(WORDS),
        )
        for _ in range(count)
    ]


class Story:
    """One table, its rows in memory, and what both were at every version."""

    def __init__(self, spark: SparkSession, lake: Lake, table: Table, rng: random.Random) -> None:
        self.spark = spark
        self.lake = lake
        self.table = table
        self.rng = rng
        self.rows: list[Row] = []
        self.past: dict[int, list[Row]] = {0: []}
        self.done: Counter[str] = Counter()
        self.partitioned = bool(table.snapshot().partition_columns)

    @property
    def target(self) -> DeltaTable:
        return DeltaTable.forName(self.spark, self.table.name, catalog=self.lake)

    def frame(self, rows: list[Row]) -> DataFrame:
        schema = "id bigint, part string, v bigint, word string"
        return self.spark.createDataFrame(rows, schema)

    def append(self) -> None:
        rows = new_rows(self.rng, self.rng.randrange(1, 30))
        self.table.append(self.frame(rows))
        self.rows = self.rows + rows

    def overwrite(self) -> None:
        rows = new_rows(self.rng, 20)
        self.table.overwrite(self.frame(rows))
        self.rows = rows

    def replace_where(self) -> None:
        n = self.rng.randrange(40)
        rows = [row for row in new_rows(self.rng, 10) if row[0] is not None and row[0] > n]
        self.table.overwrite(self.frame(rows), where=f"id > {n}")
        self.rows = [r for r in self.rows if not (r[0] is not None and r[0] > n)] + rows

    def delete(self) -> None:
        where = condition(self.rng)
        self.target.delete(where.sql)
        self.rows = [row for row in self.rows if where.holds(row) is not True]

    def update(self) -> None:
        where = condition(self.rng)
        word = self.rng.choice(["new", "x"])
        self.target.update(where.sql, {"v": "v + 1", "word": f"'{word}'", "part": "word"})
        self.rows = [
            (row[0], row[3], None if row[2] is None else row[2] + 1, word)
            if where.holds(row) is True
            else row
            for row in self.rows
        ]

    def merge(self) -> None:
        ids = self.rng.sample(range(70), 12)
        source = [(i, self.rng.choice(PARTS), i, self.rng.choice(WORDS)) for i in ids]
        by_id = {row[0]: row for row in source}
        (
            self.target.alias("t")
            .merge(self.frame(source).alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.v % 5 = 0")
            .whenMatchedUpdate("t.part IS NOT NULL", {"v": "s.v", "word": "concat(t.word, '!')"})
            .whenNotMatchedInsertAll("s.v > 10")
            .whenNotMatchedBySourceDelete("t.v = 3")
            .execute()
        )
        after = []
        for row in self.rows:
            other = by_id.get(row[0])
            if other is None:
                if row[2] != 3:
                    after.append(row)
            elif other[2] % 5 == 0:
                continue
            elif row[1] is not None:
                after.append((row[0], row[1], other[2], None if row[3] is None else row[3] + "!"))
            else:
                after.append(row)
        known = {row[0] for row in self.rows}
        after += [row for row in source if row[0] not in known and row[2] > 10]
        self.rows = after

    def optimize(self) -> None:
        if self.rng.random() < 0.5:
            self.target.optimize().executeCompaction()
        else:
            self.target.optimize().executeZOrderBy("id", "word")

    def restore(self) -> None:
        version = self.rng.choice(list(self.past))
        self.target.restoreToVersion(version)
        self.rows = self.past[version]

    def step(self) -> None:
        names = ["append"] * 3 + ["delete"] * 2 + ["update"] * 2 + ["merge"] * 2
        names += ["overwrite", "replace_where", "optimize", "restore"]
        if self.feed:
            names.remove("replace_where")
        name = self.rng.choice(names)
        getattr(self, name)()
        self.done[name] += 1
        if self.partitioned:
            # A partition value cannot be told from no value when it is empty.
            self.rows = [(row[0], row[1] or None, *row[2:]) for row in self.rows]
        version = self.table.snapshot().version
        self.past[version] = self.rows
        assert self.now(version) == as_counts(self.rows), f"{name} made version {version}"

    def now(self, version: int) -> Counter[Row]:
        found = self.table.snapshot(version).to_arrow().select(COLUMNS).to_pylist()
        return as_counts([tuple(row.values()) for row in found])

    def check_all(self) -> None:
        """Every version as it was, by Spark too; and what others read of the newest."""
        for version, rows in self.past.items():
            assert self.now(version) == as_counts(rows), f"version {version}"
        scanned = self.target.toDF().select(*COLUMNS).collect()
        assert as_counts([tuple(row) for row in scanned]) == as_counts(self.rows)
        import deltalake

        mirrored = deltalake.DeltaTable(self.table.location)
        assert mirrored.version() == self.table.snapshot().version
        read = pa.table(mirrored.to_pyarrow_table()) if not self.vectors else None
        if read is not None:
            found = read.select(COLUMNS).to_pylist()
            assert as_counts([tuple(row.values()) for row in found]) == as_counts(self.rows)

    @property
    def feed(self) -> bool:
        return "delta.enableChangeDataFeed" in self.table.snapshot().properties

    @property
    def vectors(self) -> bool:
        return "delta.enableDeletionVectors" in self.table.snapshot().properties


def as_counts(rows: list[Row]) -> Counter[Row]:
    return Counter(rows)


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


@pytest.mark.parametrize(
    ("seed", "properties", "partition_by"),
    [
        (1, {}, ["part"]),
        (
            2,
            {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
            [],
        ),
    ],
    ids=["copy-partitioned", "vectors-feed"],
)
def test_random_operations(  # noqa: PLR0917 - fixtures
    spark: SparkSession,
    lake: Lake,
    tmp_path: Path,
    seed: int,
    properties: dict[str, str],
    partition_by: list[str],
) -> None:
    table = lake.create_table(
        f"story{seed}",
        location=str(tmp_path / "t"),
        schema=SCHEMA,
        partition_by=partition_by,
        properties=properties,
    )
    story = Story(spark, lake, table, random.Random(seed))
    for _ in range(1000 if SOAK else 22):
        story.step()
    story.check_all()
