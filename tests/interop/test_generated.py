"""Delta on Spark knows the generated columns of a table that was created here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

import deltalakedb
from deltalakedb.lake import Lake
from interop.readers import DeltaSpark, Peers, Refused

from support.store import Catalogs

DAY = {"delta.generationExpression": "CAST(at AS DATE)"}
FIELDS = [
    {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
    {"name": "day", "type": "date", "nullable": True, "metadata": DAY},
]


@pytest.fixture
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def test_delta_makes_and_checks_the_same_values(lake: Lake, peers: Peers, tmp_path: Path) -> None:
    spark = peers.there.get(DeltaSpark.name)
    if not isinstance(spark, DeltaSpark):
        pytest.skip(f"{DeltaSpark.name}: {peers.missing[DeltaSpark.name]}")
    schema = json.dumps({"type": "struct", "fields": FIELDS})
    table = lake.create_table("t", location=str(tmp_path / "t"), schema=schema)
    there = f"delta.`{tmp_path}/t`"
    moment = "timestamp'2026-11-01 12:00:00'"
    spark.sql(f"INSERT INTO {there} (at) VALUES ({moment})")
    with pytest.raises(Refused, match=r"(?i)generated column"):
        spark.sql(f"INSERT INTO {there} (at, day) VALUES ({moment}, date'2020-01-01')")
    lake.adopt("t")
    table.refresh()
    assert table.snapshot().to_arrow()["day"].to_pylist() == [date(2026, 11, 1)]
