"""Random conditions, through the file index and in a scan of all files: the same rows.

All types, layouts and time zones, deletion vectors and column mapping. The number of files that
were read is reported.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import deltalakedb
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.delta.jar import JAR
from deltalakedb.spark.io.file_index import SWITCH
from spark.files_read import files_read

from support.store import Catalogs

pytestmark = pytest.mark.skipif(not JAR.is_file(), reason="the jar was not built: make jar")

FILES = 12
ROWS = 6
CONDITIONS = 9
"""For each layout of the short form; the long form has many times as many."""
LONG = int(os.environ.get("DELTALAKEDB_CONDITIONS", "1500"))
ZONE = "spark.sql.session.timeZone"
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "-07:30"]
# In the nights when clocks are set back in New York and in Berlin, and far from them.
MOMENTS = [
    datetime(2026, 11, 1, 4, 45, tzinfo=UTC),
    datetime(2026, 10, 25, 0, 15, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2026, 3, 8, 6, 50, tzinfo=UTC),
]
WORDS = ["", "a", "ab", "abc", "aé", "b", "B", "x" * 40, "x" * 40 + "y", "'q'", "\\", "100%", "_"]
DOUBLES = [0.0, -0.0, 0.1, -1.5, 1e300, float("nan"), float("inf"), float("-inf"), 2.0**53 + 1]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("byte", pa.int8()),
        ("int", pa.int32()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("yes", pa.bool_()),
        ("word", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(12, 2)),
        ("Odd name.x", pa.int32()),
        ("nested", pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))])),
    ]
)
VECTORS = {"delta.enableDeletionVectors": "true"}
NAMES = {"delta.columnMapping.mode": "name"}
IDS = {"delta.columnMapping.mode": "id"}
LAYOUTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "plain": ({}, []),
    "vectors": (VECTORS, []),
    "by day and word": (VECTORS, ["day", "word"]),
    "by moment": (NAMES, ["at", "price"]),
    "by local time": ({}, ["local", "yes"]),
    "by number": ({**IDS, **VECTORS}, ["int", "double"]),
    "names": ({**NAMES, **VECTORS}, []),
}
SETTINGS = {
    # Thousands of small queries: compiling each of them takes longer than running it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url, mirror="worker") as lake:
        yield lake


@pytest.fixture(scope="module", autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in (*SETTINGS, ZONE)}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, known in before.items():
        spark.conf.set(name, str(known))


# --- rows ---------------------------------------------------------------------------------


def values(rng: random.Random, near: int) -> dict[str, Any]:
    """A row; most of its values are near a number, so that files differ."""
    moment = rng.choice(MOMENTS) + timedelta(minutes=30 * rng.randrange(-3, 4) + near)
    word = rng.choice(WORDS)
    row = {
        "id": near * 10 + rng.randrange(12),
        "byte": (near * 20) % 256 - 128,
        "int": near + rng.randrange(2),
        "float": rng.choice([near * 0.1, *DOUBLES[:4], float("nan")]),
        "double": rng.choice([near / 7, *DOUBLES]),
        "yes": near % 3 == 0,
        "word": word if rng.random() < 0.5 else f"{near:02}{word}",
        "raw": bytes([near, rng.randrange(256)]),
        "day": date(2026, 10, 20) + timedelta(days=near),
        "at": moment,
        "local": moment.replace(tzinfo=None),
        "price": Decimal(near * 100 + rng.randrange(300)) / 100,
        "Odd name.x": near,
        "nested": {"a": near, "b": {"c": word}},
    }
    empty = rng.sample(list(row), k=rng.choice([0, 0, 1, 3]))
    return {name: None if name in empty else value for name, value in row.items()}


def literal(rng: random.Random, kind: pa.DataType, near: int) -> str:
    """A value of a type, as SQL; it may be one that no row has."""
    if pa.types.is_boolean(kind):
        return rng.choice(["true", "false"])
    if pa.types.is_floating(kind):
        text = rng.choice(["0.1D", "-1.5D", "CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS DOUBLE)"])
        return rng.choice([text, f"{near / 7!r}D", f"{near}", "CAST(0.1 AS FLOAT)", "-0.0D"])
    if pa.types.is_decimal(kind):
        return rng.choice([f"{near}.50", f"{near}", f"{near}.125", f"{near}.0D", f"'{near}.01'"])
    if pa.types.is_integer(kind):
        return rng.choice([f"{near}", f"{near}L", f"{near}.5", f"'{near}'", "9999999999", "-1"])
    if pa.types.is_date(kind):
        day = date(2026, 10, 20) + timedelta(days=near)
        return rng.choice([f"DATE '{day}'", f"'{day}'", f"TIMESTAMP '{day} 03:00:00'"])
    if pa.types.is_timestamp(kind):
        moment = rng.choice(MOMENTS) + timedelta(minutes=near)
        text = f"{moment:%Y-%m-%d %H:%M:%S}"
        kinds = [f"TIMESTAMP '{text}'", f"TIMESTAMP '{text}Z'", f"TIMESTAMP_NTZ '{text}'"]
        return rng.choice([*kinds, f"'{text}'", f"DATE '{text[:10]}'", f"timestamp_micros({near})"])
    if pa.types.is_binary(kind):
        return rng.choice([f"X'{near:02X}'", f"X'{near:02X}80'"])
    word = rng.choice(WORDS).replace("\\", "\\\\").replace("'", "\\'")
    return rng.choice([f"'{word}'", f"'{near:02}{word}'"])


COLUMNS = {
    **{f"`{field.name}`": field.type for field in SCHEMA if field.name != "nested"},
    "nested.a": pa.int32(),
    "nested.b.c": pa.string(),
}


def leaf(rng: random.Random) -> str:
    column, kind = rng.choice(list(COLUMNS.items()))

    def one() -> str:
        return literal(rng, kind, rng.randrange(FILES + 1))

    shapes: list[Callable[[], str]] = [
        *[lambda: f"{column} {rng.choice(['=', '<', '<=', '>', '>=', '<>', '<=>'])} {one()}"] * 6,
        lambda: f"{one()} < {column}",
        lambda: f"{column} BETWEEN {one()} AND {one()}",
        lambda: f"{column} IN ({one()}, {one()}, {one()})",
        lambda: f"{column} NOT IN ({one()}, {rng.choice(['NULL', one()])})",
        lambda: f"{column} IS {rng.choice(['NULL', 'NOT NULL'])}",
        lambda: f"coalesce({column}, {one()}) = {one()}",
        lambda: f"CAST({column} AS STRING) LIKE '{rng.choice(WORDS[:6])}%'",
    ]
    if pa.types.is_string(kind):
        shapes += [
            lambda: f"{column} LIKE '{rng.choice(['a', 'x', '0', '1_', '%b', 'a%c', ''])}%'",
            lambda: f"startswith({column}, {one()})",
            lambda: f"upper({column}) = {one()}",
            lambda: f"length({column}) > 3",
        ]
    if pa.types.is_timestamp(kind):
        shapes += [
            lambda: f"CAST({column} AS DATE) = {literal(rng, pa.date32(), rng.randrange(FILES))}",
            lambda: f"hour({column}) = {rng.randrange(24)}",
        ]
    if pa.types.is_integer(kind):
        shapes += [
            lambda: f"{column} % 5 = {rng.randrange(5)}",
            lambda: f"{column} + 1 = {rng.randrange(FILES)}",
            lambda: f"CAST({column} AS STRING) = '{rng.randrange(FILES)}'",
        ]
    return rng.choice(shapes)()


def condition(rng: random.Random, depth: int = 0) -> str:
    choice = rng.random()
    if depth > 2 or choice < 0.45:
        return leaf(rng)
    if choice < 0.55:
        return f"NOT ({condition(rng, depth + 1)})"
    operator = " AND " if choice < 0.8 else " OR "
    return operator.join(f"({condition(rng, depth + 1)})" for _ in range(rng.choice([2, 2, 3])))


# --- tests --------------------------------------------------------------------------------


def opened(spark: SparkSession, lake: Lake, folder: Path, layout: str, seed: int) -> DeltaTable:
    rng = random.Random(seed)
    properties, partition_by = LAYOUTS[layout]
    table = lake.create_table(
        f"{layout} {folder.name}",
        location=str(folder),
        schema=SCHEMA,
        partition_by=partition_by,
        properties={"delta.columnMapping.mode": "name", **properties},
    )
    for near in range(FILES):
        rows = [values(rng, near) for _ in range(ROWS)]
        table.append(pa.Table.from_pylist(rows, schema=SCHEMA))
    target = DeltaTable.forName(spark, table.name, catalog=lake)
    if "delta.enableDeletionVectors" in properties:
        target.delete("id % 7 = 3")
    return target


def compare(
    spark: SparkSession, target: DeltaTable, seed: int, count: int
) -> tuple[int, int, int, int]:
    """Compare so many conditions; return the numbers of those that fail, of rows and of files."""
    spark.conf.set(SWITCH, "false")
    try:
        everything = target.toDF()
    finally:
        spark.conf.unset(SWITCH)
    files = target.detail().collect()[0]["numFiles"]
    rng = random.Random(seed)
    failed = rows = read = listed = 0
    for number in range(count):
        spark.conf.set(ZONE, rng.choice(ZONES))
        where = condition(rng)
        expected, _ = result(everything, where)
        found, count_of_files = result(target.toDF(), where)
        assert found == expected, (seed, spark.conf.get(ZONE), where)
        if isinstance(expected, str):
            failed += 1
            continue
        rows += len(expected)
        read += count_of_files
        listed += files
        if number % 3 == 0:
            again, _ = result(target.toDF(where=where), where)
            assert again == expected, (seed, spark.conf.get(ZONE), where)
    return failed, rows, read, listed


def result(frame: DataFrame, where: str) -> tuple[list[str] | str, int]:
    """The rows, or the kind of error of a condition that has none; and how many files were read."""
    try:
        found = frame.where(where)
        return sorted(map(repr, found.collect())), files_read(found)
    except PySparkException as error:
        return str(error.getCondition()), 0


@pytest.mark.parametrize("layout", ["plain", "by day and word", "by number", "names"])
def test_random_conditions(spark: SparkSession, lake: Lake, tmp_path: Path, layout: str) -> None:
    target = opened(spark, lake, tmp_path / "t", layout, seed=1)
    failed, rows, read, listed = compare(spark, target, seed=1, count=CONDITIONS)
    assert failed < CONDITIONS // 3
    assert rows
    assert read < listed, "no file was pruned"


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_thousands_of_conditions(
    spark: SparkSession, lake: Lake, tmp_path: Path, layout: str
) -> None:
    for seed in range(2, 2 + LONG // 250):
        target = opened(spark, lake, tmp_path / f"t{seed}", layout, seed)
        failed, rows, read, listed = compare(spark, target, seed, 250)
        sys.stdout.write(
            f"\n{layout} {seed}: 250 conditions, {failed} fail in both, {rows} rows, "
            f"{read} of {listed} files read"
        )
        sys.stdout.flush()
