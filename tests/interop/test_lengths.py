"""CHAR and VARCHAR mean the same here and in Delta on Spark, whoever created the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, CharType, LongType, StructType, VarcharType

import deltalakedb
from deltalakedb.errors import ConstraintViolatedError
from deltalakedb.lake import Lake
from interop.readers import DeltaSpark, Peers, Refused

from support.store import Catalogs

DECLARED = "a VARCHAR(3), b STRUCT<x: ARRAY<CHAR(2)>, y: BIGINT>, n INT"
SCHEMA = (
    StructType()
    .add("a", VarcharType(3))
    .add("b", StructType().add("x", ArrayType(CharType(2))).add("y", LongType()))
    .add("n", "integer")
)


@pytest.fixture
def lake(catalogs: Catalogs) -> Iterator[Lake]:
    with catalogs.fresh("sqlite") as url, deltalakedb.connect(url) as lake:
        yield lake


def test_what_is_too_long_for_delta_is_so_here(lake: Lake, peers: Peers, tmp_path: Path) -> None:
    spark = peers.there.get(DeltaSpark.name)
    if not isinstance(spark, DeltaSpark):
        pytest.skip(f"{DeltaSpark.name}: {peers.missing[DeltaSpark.name]}")
    spark.run(f"CREATE TABLE delta.`{tmp_path}/theirs` ({DECLARED}) USING delta")
    theirs = lake.import_table(str(tmp_path / "theirs"), name="theirs")
    ours = lake.create_table("ours", location=str(tmp_path / "ours"), schema=SCHEMA)
    assert ours.snapshot().schema == theirs.snapshot().schema
    for number, table in enumerate((ours, theirs)):
        there = f"delta.`{table.location.removeprefix('file://')}`"
        for bad in ({"a": "abcd"}, {"b": {"x": ["abc"], "y": 1}}):
            with pytest.raises(ConstraintViolatedError, match="too long"):
                table.append([{"n": 0, **bad}])
        with pytest.raises(Refused, match=r"(?i)length"):
            spark.sql(f"INSERT INTO {there} VALUES ('abcd', NULL, 1)")
        table.append([{"a": "abc", "b": {"x": ["ab"], "y": number}, "n": 1}])
        assert spark.read(tmp_path / table.name).num_rows == 1
