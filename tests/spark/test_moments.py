"""Times that name no zone are in that of the session, wherever Spark's users give one."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import ConfigurationError
from deltalakedb.lake import Lake
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.io.timestamps import moment
from deltalakedb.spark.source.native_format import SWITCH
from deltalakedb.table import Table

from support.store import Catalogs

pytestmark = pytest.mark.usefixtures("native_format")

TOKYO = ZoneInfo("Asia/Tokyo")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-01 12:00:00", datetime(2026, 11, 1, 3, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 10, 31, 15, tzinfo=UTC)),
        (" 2026-11-01T12:00:00.250 ", datetime(2026, 11, 1, 3, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-11-01T12:00:00Z", datetime(2026, 11, 1, 12, tzinfo=UTC)),
        ("2026-11-01 12:00:00+02:00", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        (
            datetime(2026, 11, 1, 12, tzinfo=timezone(timedelta(hours=-5))),
            datetime(2026, 11, 1, 17, tzinfo=UTC),
        ),
    ],
)
def test_what_is_meant(given: datetime | str, expected: datetime) -> None:
    assert moment(given, TOKYO) == expected


def test_without_a_session_it_is_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        noon = datetime(2026, 11, 1, 12)  # noqa: DTZ001 - that is the point
        assert moment("2026-11-01 12:00:00", None) == datetime(2026, 11, 1, 3, tzinfo=UTC)
        assert moment(noon, None) == datetime(2026, 11, 1, 3, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()
    with pytest.raises(ConfigurationError, match="is not a time"):
        moment("yesterday", None)


@pytest.fixture
def tokyo(spark: SparkSession) -> Iterator[SparkSession]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def test_versions_by_time(tokyo: SparkSession, catalogs: Catalogs, tmp_path: Path) -> None:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        table = filled(lake, tmp_path)
        text = table.snapshot(1).timestamp.astimezone(TOKYO).replace(tzinfo=None).isoformat(" ")
        target = DeltaTable.forName(tokyo, "t", catalog=lake)
        assert target.toDF(timestamp=text).count() == 1
        read = tokyo.read.format("deltalakedb").option("catalog", url)
        assert read.option("timestampAsOf", text).load("t").count() == 1
        feed = (
            tokyo.read.format("deltalakedb")
            .options(catalog=url, readChangeFeed="true", startingVersion=1, endingTimestamp=text)
            .load("t")
        )
        assert feed.count() == 1
        target.cloneAtTimestamp(text, str(tmp_path / "clone"), isShallow=True, name="c")
        assert lake.table("c").snapshot().to_arrow().num_rows == 1
        target.restoreToTimestamp(text)
        assert target.toDF().count() == 1
        assert str(tokyo.conf.get(SWITCH, "true")) == "true"


def filled(lake: Lake, folder: Path) -> Table:
    table = lake.create_table(
        "t", location=str(folder / "t"), schema=pa.schema([("id", pa.int64())])
    )
    for n in range(3):
        table.append(pa.table({"id": [n]}))
    return table


@pytest.mark.parametrize("feed", ["false", "true"])
def test_moments_that_python_has_not(
    spark: SparkSession, catalogs: Catalogs, tmp_path: Path, feed: str
) -> None:
    """The end of the year 9999 in New York is in the year 10000 of UTC."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
            frame = spark.sql(
                "SELECT id, timestamp'9999-12-31 23:59:59' AS until, date'9999-12-31' + 1 AS day, "
                "timestamp_ntz'9999-12-31 23:59:59' AS local FROM range(2)"
            )
            table = lake.create_table(
                "t",
                location=str(tmp_path / "t"),
                schema=frame.schema,
                properties={"delta.enableChangeDataFeed": feed},
            )
            table.append(frame)
            table.append(frame.selectExpr("id + 2 AS id", "until", "day", "local"))
            target = DeltaTable.forName(spark, "t", catalog=lake)
            target.update("id = 0", {"id": "10"})
            merge = target.alias("t").merge(frame.alias("s"), "t.until = s.until AND t.id = s.id")
            merge.whenMatchedDelete("s.id = 1").whenNotMatchedInsertAll().execute()
            merge = target.alias("t").merge(frame.alias("s"), "t.day = s.day AND t.id = s.id")
            merge.whenNotMatchedInsertAll().execute()
            target.optimize().executeCompaction()
            target.optimize().executeZOrderBy("until", "day", "local")
            rows = target.toDF().selectExpr("id", "cast(until as string)", "cast(day as string)")
            expected = [(n, "9999-12-31 23:59:59", "+10000-01-01") for n in (0, 1, 2, 3, 10)]
            assert sorted(map(tuple, rows.collect())) == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
