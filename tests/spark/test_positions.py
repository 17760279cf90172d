"""Rows by their positions, against sets of Python."""

import random

import pyarrow as pa
from pyspark.sql import SparkSession

from deltalakedb.spark.io.positions import CHOSEN, flagged, only, without


def test_rows_are_told_by_their_positions(spark: SparkSession) -> None:
    chance = random.Random(7)
    everything = {(file, row) for file in ("a", "b c") for row in range(1000)}
    rows = spark.createDataFrame(sorted(everything), "file string, row bigint")
    some = set(chance.sample(sorted(everything), 300))
    whole_words = {("a", row) for row in range(64, 256)}
    ends = {("b c", row) for row in (0, 62, 63, 64, 127, 128, 999)}
    where = {"file": "file", "row": "row"}
    for wanted in (some, whole_words, ends, everything, set[tuple[str, int]]()):
        positions = {
            file: pa.array(sorted(row for one, row in wanted if one == file), pa.int64())
            for file in ("b c", "a", "another")
        }
        assert {tuple(row) for row in only(rows, positions, **where).collect()} == wanted
        left = {tuple(row) for row in without(rows, positions, **where).collect()}
        assert left == everything - wanted
        told = flagged(rows, positions, **where)
        assert told.columns == ["file", "row", CHOSEN]
        assert {tuple(row)[:2] for row in told.where(CHOSEN).collect()} == wanted
        assert told.count() == len(everything)
