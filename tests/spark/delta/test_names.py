"""Names: what is created, renamed or dropped in Spark or in the lake is seen in the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import deltalakedb
from deltalakedb.errors import TableNotFoundError
from deltalakedb.lake import Lake
from deltalakedb.spark.delta.embedded import Service, embedded_service
from deltalakedb.storage import local_path
from interop.readers import Refused
from spark.delta.lake_spark import LakeSpark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = pa.schema([("id", pa.int64())])
ROWS = pa.table({"id": [1, 2]})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake with a warehouse that is not that of the session."""
    folder = tmp_path_factory.mktemp("names")
    url = f"sqlite:///{folder}/lake.db"
    with deltalakedb.connect(url, warehouse=str(folder / "warehouse")) as lake:
        yield lake


@pytest.fixture
def spark(started: LakeSpark, lake: Lake) -> LakeSpark:
    """The session, pointed at the lake of this module."""
    started.use(embedded_service(lake))
    return started


def place(lake: Lake, name: str) -> Path:
    """The folder of a table."""
    path = local_path(lake.table(name).location)
    assert path is not None
    return path


def tables(spark: LakeSpark, database: str) -> set[str]:
    """The names that SHOW TABLES lists."""
    return {row[1] for row in spark.rows(f"SHOW TABLES IN {database}")}


def test_tables_of_the_lake_are_there_at_once(spark: LakeSpark, lake: Lake) -> None:
    lake.create_table("plain", schema=SCHEMA).append(ROWS)
    lake.create_table("web.Clicks", schema=SCHEMA).append(ROWS)
    assert spark.rows("SELECT count(*) FROM web.clicks") == [(2,)]
    assert spark.rows("SELECT count(*) FROM plain") == [(2,)]
    assert spark.rows("SELECT count(*) FROM default.plain") == [(2,)]
    assert "web" in {row[0] for row in spark.rows("SHOW DATABASES")}
    lake.create_table("web.later", schema=SCHEMA)
    assert {"clicks", "later"} <= tables(spark, "web")
    lake.table("web.Clicks").rename("web.visits")
    assert "clicks" not in tables(spark, "web")
    assert spark.rows("SELECT count(*) FROM web.visits") == [(2,)]
    with pytest.raises(Refused, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.rows("SELECT * FROM web.clicks")
    files = place(lake, "web.visits")
    lake.drop_table("web.visits")
    with pytest.raises(Refused, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.rows("SELECT * FROM web.visits")
    assert (files / "_delta_log").is_dir(), "Spark keeps the files of what the lake has dropped"


def test_a_new_table_of_spark_has_its_name_and_place_in_the_lake(
    spark: LakeSpark, lake: Lake
) -> None:
    spark.run("CREATE DATABASE shop")
    spark.run("CREATE TABLE shop.Orders (id BIGINT) USING delta")
    spark.run("CREATE TABLE items USING delta AS SELECT 1L AS id")
    assert lake.warehouse is not None
    assert lake.table("shop.orders").location == f"{lake.warehouse}/shop.db/orders"
    assert lake.table("items").location == f"{lake.warehouse}/items"
    lake.table("shop.orders").append(ROWS)
    assert spark.rows("SELECT count(*) FROM shop.orders") == [(2,)]
    with pytest.raises(Refused, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.run("CREATE TABLE shop.orders (id BIGINT) USING delta")


def test_a_place_below_the_warehouse_gets_the_name_of_the_statement(
    spark: LakeSpark, lake: Lake
) -> None:
    spark.run(f"CREATE TABLE named USING delta LOCATION '{lake.warehouse}/a/b' AS SELECT 1L AS id")
    assert lake.table("named").location == f"{lake.warehouse}/a/b"


def test_another_name_for_a_table_does_not_rename_it(spark: LakeSpark, lake: Lake) -> None:
    first = lake.create_table("first", schema=SCHEMA)
    spark.run(f"CREATE TABLE second USING delta LOCATION '{first.location}'")
    spark.run("INSERT INTO second VALUES (7)")
    assert lake.table("first").snapshot().to_arrow().to_pylist() == [{"id": 7}]
    spark.run("DROP TABLE second")
    assert spark.rows("SELECT id FROM first") == [(7,)]


def test_dropping_in_spark_drops_in_the_lake(spark: LakeSpark, lake: Lake, tmp_path: Path) -> None:
    managed = lake.create_table("gone", schema=SCHEMA)
    folder = place(lake, "gone")
    external = lake.create_table("unlisted", location=str(tmp_path / "x"), schema=SCHEMA)
    spark.run("DROP TABLE gone")
    spark.run("DROP TABLE unlisted PURGE")
    for table in (managed, external):
        with pytest.raises(TableNotFoundError):
            lake.table(table.name)
    assert not folder.exists(), "as with a managed table of Spark's"
    assert (tmp_path / "x" / "_delta_log").is_dir(), "as with an external one"
    spark.run("DROP TABLE IF EXISTS gone")
    spark.run("CREATE TABLE gone (other STRING) USING delta")
    assert lake.table("gone").version == 0


def test_renaming_in_spark_moves_no_file(spark: LakeSpark, lake: Lake) -> None:
    lake.create_table("old.name", schema=SCHEMA).append(ROWS)
    folder = place(lake, "old.name")
    spark.run("ALTER TABLE old.name RENAME TO old.other")
    assert place(lake, "old.other") == folder
    assert spark.rows("SELECT count(*) FROM old.other") == [(2,)]
    assert tables(spark, "old") == {"other"}
    lake.create_table("old.taken", schema=SCHEMA)
    with pytest.raises(Refused, match="ALREADY_EXISTS"):
        spark.run("ALTER TABLE old.other RENAME TO old.taken")
    with pytest.raises(Refused, match=r"location of .*old\.other cannot be changed"):
        spark.run("ALTER TABLE old.other SET LOCATION '/elsewhere'")


def test_a_database_is_dropped_with_its_tables_and_no_others(spark: LakeSpark, lake: Lake) -> None:
    lake.create_table("done.a", schema=SCHEMA)
    with pytest.raises(Refused, match="SCHEMA_NOT_EMPTY"):
        spark.run("DROP DATABASE done")
    lake.create_table("done.moved", schema=SCHEMA).rename("kept.moved")
    with pytest.raises(Refused, match=r"holds the files of the table kept\.moved"):
        spark.run("DROP DATABASE done CASCADE")
    assert lake.table("done.a").version == 0
    assert (place(lake, "kept.moved") / "_delta_log").is_dir()
    lake.drop_table("kept.moved")
    spark.run("DROP DATABASE done CASCADE")
    assert "done.a" not in lake


def test_tables_of_others_behave_as_ever(spark: LakeSpark, lake: Lake, tmp_path: Path) -> None:
    before = [table.name for table in lake.tables()]
    spark.run("CREATE TABLE parquet_one USING parquet AS SELECT 1 AS id")
    spark.run(f"CREATE TABLE outside USING delta LOCATION '{tmp_path}/o' AS SELECT 1 AS id")
    spark.run("UPDATE outside SET id = 2")
    spark.run(f"INSERT INTO delta.`{tmp_path}/o` VALUES (3)")
    spark.run("CREATE OR REPLACE TEMPORARY VIEW seen AS SELECT * FROM outside")
    assert sorted(spark.rows("SELECT * FROM seen")) == [(2,), (3,)]
    spark.run("ALTER TABLE parquet_one RENAME TO parquet_two")
    assert spark.rows("SELECT * FROM parquet_two") == [(1,)]
    for name in ("outside", "parquet_two"):
        spark.run(f"DROP TABLE {name}")
    assert [table.name for table in lake.tables()] == before


def test_a_name_with_two_meanings_is_refused(spark: LakeSpark, lake: Lake, tmp_path: Path) -> None:
    spark.run(f"CREATE TABLE twice USING delta LOCATION '{tmp_path}/o' AS SELECT 1 AS id")
    lake.create_table("twice", schema=SCHEMA)
    with pytest.raises(Refused, match="twice has two meanings"):
        spark.rows("SELECT * FROM twice")
    lake.table("twice").rename("once")
    assert spark.rows("SELECT * FROM twice") == [(1,)]
    spark.run("DROP TABLE twice")


def test_without_its_service_nothing_is_written(
    spark: LakeSpark, lake: Lake, tmp_path: Path
) -> None:
    lake.create_table("alone", schema=SCHEMA)
    spark.run("INSERT INTO alone VALUES (1)")
    spark.run("SET deltalakedb.timeout=1")
    spark.use(Service("http://127.0.0.1:1", "no-such-service-token"))
    try:
        for statement in (
            "INSERT INTO alone VALUES (2)",
            f"INSERT INTO delta.`{place(lake, 'alone')}` VALUES (2)",
            f"CREATE TABLE delta.`{tmp_path}/new` (id BIGINT) USING delta",
            "SHOW TABLES",
        ):
            with pytest.raises(Refused, match=r"did not do it within 1\.0 seconds"):
                spark.run(statement)
    finally:
        spark.run("RESET deltalakedb.timeout")
    assert lake.table("alone").version == 1
    assert not list(tmp_path.rglob("*.json"))
    assert len(list(place(lake, "alone").glob("_delta_log/*.json"))) == 2


def test_a_wrong_token_is_refused_and_not_repeated_in_the_error(
    spark: LakeSpark, lake: Lake
) -> None:
    uri = embedded_service(lake).uri
    spark.use(Service(uri, "a-token-that-is-wrong"))
    with pytest.raises(Refused, match="The token is missing or wrong") as refused:
        spark.run("SHOW TABLES")
    assert "a-token-that-is-wrong" not in str(refused.value)
