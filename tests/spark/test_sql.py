"""SQL over several tables at one instant, whose WHERE clauses choose the files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import (
    InvalidConditionError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from deltalakedb.lake import Lake
from deltalakedb.spark import register
from deltalakedb.spark.api import sql
from deltalakedb.spark.io.scan import scan_files

from support.store import Catalogs


@pytest.fixture(scope="module")
def lake(catalogs: Catalogs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder: Path = tmp_path_factory.mktemp("tables")
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        orders = lake.create_table(
            "shop.orders",
            location=str(folder / "orders"),
            schema=pa.schema([("id", pa.int64()), ("who", pa.string())]),
        )
        for i in range(5):
            orders.append(pa.table({"id": [10 * i, 10 * i + 1], "who": ["ann", "bob"]}))
        people = lake.create_table(
            "people", location=str(folder / "people"), schema=pa.schema([("who", pa.string())])
        )
        people.append(pa.table({"who": ["ann", "eve"]}))
        yield lake


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each scan had."""
    counts: list[int] = []
    real = scan_files

    def counting(spark: Any, snapshot: Any, files: Any) -> Any:
        counts.append(files.num_rows)
        return real(spark, snapshot, files)

    monkeypatch.setattr(sql, "scan_files", counting)
    return counts


@pytest.mark.parametrize(
    ("query", "rows", "files"),
    [
        ("SELECT count(*) FROM shop.orders", [(10,)], [5]),
        ("SELECT id FROM shop.orders WHERE id = 21", [(21,)], [1]),
        ("SELECT o.id FROM shop.orders o WHERE o.id > 35 AND o.who = 'bob'", [(41,)], [1]),
        (
            "SELECT o.id FROM shop.orders AS o JOIN people p ON o.who = p.who WHERE o.id >= 30",
            [(30,), (40,)],
            [2, 1],
        ),
        # Behind a pipe the order of clauses decides.
        ("FROM shop.orders |> ORDER BY id |> LIMIT 3 |> WHERE id = 21", [], [5]),
        # Files of the side that may be missing must all be there.
        (
            (
                "SELECT p.who FROM people p LEFT JOIN shop.orders o "
                "ON o.who = p.who AND o.id < 0 WHERE o.id IS NULL"
            ),
            [("ann",), ("eve",)],
            [1, 5],
        ),
        (
            (
                "WITH people AS (SELECT 'zoe' AS who) SELECT who FROM people "
                "UNION ALL SELECT who FROM (SELECT who FROM shop.orders WHERE id = 0)"
            ),
            [("ann",), ("zoe",)],
            [1],
        ),
        ("SELECT orders.id FROM shop.orders WHERE orders.id < 0 OR 1 = 0", [], [0]),
        # The text goes to Spark as it is, whatever another dialect would make of it.
        (
            "SELECT 'it''s' AS a, listagg(who) AS b, floor(log10(1000)) AS c FROM people",
            [("it's", "anneve", 3)],
            [1],
        ),
        ("SELECT id FROM shop.orders WHERE id = 21 -- only one\n AND who = 'bob'", [(21,)], [1]),
        ("SELECT count(*) FROM Shop.ORDERS", [(10,)], [5]),
        # A name that the query defines is its own only where it is defined.
        (
            "WITH people AS (SELECT * FROM people WHERE who = 'eve') SELECT who FROM people",
            [("eve",)],
            [1],
        ),
        (
            (
                "SELECT count(*) FROM (WITH people AS (SELECT 1) SELECT * FROM people) x "
                "JOIN people p ON true"
            ),
            [(2,)],
            [1],
        ),
        # Columns that are called otherwise: their names say nothing of files.
        ("SELECT who, id FROM shop.orders AS o(who, id) WHERE who = 21", [(21, "bob")], [5]),
        (
            "SELECT count(*) FROM shop.orders TABLESAMPLE (10 ROWS) REPEATABLE (3) WHERE id = 21",
            [(1,)],
            [5],
        ),
        # A column of the query around it.
        (
            (
                "SELECT p.who FROM people p WHERE EXISTS "
                "(SELECT 1 FROM shop.orders WHERE id = 0 AND p.who = 'ann')"
            ),
            [("ann",)],
            [1, 1],
        ),
        # An outer join inside a join: rows of the one side may come without the other's.
        (
            (
                "SELECT z.who, o.id FROM (SELECT 21 AS id) x "
                "JOIN (shop.orders o RIGHT JOIN (SELECT 'bob' AS who, 21 AS id) z "
                "ON o.id = z.id) ON x.id = z.id WHERE o.id IS NULL"
            ),
            [],
            [5],
        ),
        ("SELECT count(*) FROM shop.orders VERSION AS OF 2", [(4,)], [2]),
        (
            "SELECT count(*) FROM shop.orders FOR VERSION AS OF 2 o WHERE o.id < 10",
            [(2,)],
            [1],
        ),
    ],
)
def test_queries(
    spark: SparkSession,
    lake: Lake,
    scanned: list[int],
    *,
    query: str,
    rows: list[tuple[Any, ...]],
    files: list[int],
) -> None:
    assert sorted(tuple(row) for row in lake.sql(spark, query).collect()) == rows
    assert sorted(scanned) == sorted(files)
    assert not [t for t in spark.catalog.listTables() if t.name.startswith("__deltalakedb")]


def test_tables_are_views_of_one_instant(spark: SparkSession, lake: Lake) -> None:
    assert sorted(register(spark, lake)) == ["people", "shop.orders"]
    joined = spark.sql("SELECT count(*) FROM `shop.orders` o JOIN people p ON o.who = p.who")
    assert joined.collect()[0][0] == 5
    for name in ("people", "shop.orders"):
        spark.catalog.dropTempView(f"`{name}`")


def test_a_query_that_is_wrong_is_told(spark: SparkSession, lake: Lake) -> None:
    with pytest.raises(InvalidConditionError, match="cannot be understood"):
        lake.sql(spark, "SELECT FROM WHERE (")
    with pytest.raises(InvalidConditionError, match="2 queries"):
        lake.sql(spark, "SELECT 1; SELECT 2")
    with pytest.raises(UnsupportedFeatureError, match="DELETE is no query"):
        lake.sql(spark, "DELETE FROM people WHERE who = 'ann'")
    with pytest.raises(VersionNotFoundError):
        lake.sql(spark, "SELECT * FROM people VERSION AS OF 77")
    with pytest.raises(UnsupportedFeatureError, match="is no version"):
        lake.sql(spark, "SELECT * FROM people VERSION AS OF 1 + 1")


def test_an_earlier_time_is_in_the_zone_of_the_session(spark: SparkSession, lake: Lake) -> None:
    table = lake.table("shop.orders")
    moment = table.snapshot(2).timestamp
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    try:
        for zone in ("UTC", "Asia/Tokyo", "-03:30"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            text = spark.sql(f"SELECT string(timestamp_millis({moment.timestamp() * 1000:.0f}))")
            (local,) = text.collect()[0]
            found = lake.sql(spark, f"SELECT count(*) FROM shop.orders TIMESTAMP AS OF '{local}'")
            assert found.collect()[0][0] == 4
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
