"""Rows by position: the file of a row, by Spark's name, and its number there.

Positions are sent to Spark as words of 64 bits, one for each row: neighbours share a word, so many
rows of a few files take little memory. A join selects the rows at the positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

CHOSEN: Final = "__deltalakedb_chosen"
"""Whether a row is at one of the positions (see `flagged`)."""
_FILE: Final = "__deltalakedb_at_file"
_WORD: Final = "__deltalakedb_at_word"
_BITS: Final = "__deltalakedb_at_bits"
_MOST_SENT: Final = 200_000
"""The most words that are sent to every task: about 30 MB."""


def only(rows: DataFrame, positions: Mapping[str, pa.Array], *, file: str, row: str) -> DataFrame:
    """The rows at these positions; `file` and `row` are the columns with the position of a row."""
    words, same, bit = _words(rows, positions, file, row)
    return rows.join(words, same & bit, "left_semi")


def without(
    rows: DataFrame, positions: Mapping[str, pa.Array], *, file: str, row: str
) -> DataFrame:
    """The rows at all other positions."""
    words, same, bit = _words(rows, positions, file, row)
    return rows.join(words, same & bit, "left_anti")


def flagged(
    rows: DataFrame, positions: Mapping[str, pa.Array], *, file: str, row: str
) -> DataFrame:
    """All rows, with the column CHOSEN."""
    words, same, bit = _words(rows, positions, file, row)
    joined = rows.join(words, same, "left")
    chosen = F.coalesce(bit, F.lit(False))  # noqa: FBT003
    return joined.withColumn(CHOSEN, chosen).drop(_FILE, _WORD, _BITS)


def _words(
    rows: DataFrame, positions: Mapping[str, pa.Array], file: str, row: str
) -> tuple[DataFrame, Column, Column]:
    """The positions as a frame of words, the join condition, and whether a row has its bit set."""
    table = _encoded(positions)
    words = rows.sparkSession.createDataFrame(table)
    if table.num_rows <= _MOST_SENT:
        # Spark does not know their number, and would shuffle the rows of the table.
        words = F.broadcast(words)
    same = (F.col(file) == F.col(_FILE)) & (F.shiftright(F.col(row), 6) == F.col(_WORD))
    bit = F.getbit(F.col(_BITS), F.col(row).bitwiseAND(63).cast("int")) == 1
    return words, same, bit


def _encoded(positions: Mapping[str, pa.Array]) -> pa.Table:
    schema = pa.schema([(_FILE, pa.string()), (_WORD, pa.int64()), (_BITS, pa.int64())])
    parts = [schema.empty_table()]
    # Arrow does not shift into the sign.
    one: Any = pa.scalar(1, pa.uint64())
    for name, rows in positions.items():
        numbers = pc.unique(rows.cast(pa.int64()))
        word = pc.shift_right(numbers, 6)
        bits = pc.shift_left(one, pc.bit_wise_and(numbers, 63).cast(pa.uint64()))
        # Each bit occurs once, so their sum has all of them.
        words = pa.table({_WORD: word, _BITS: bits}).group_by(_WORD).aggregate([(_BITS, "sum")])
        names = pa.array([name]).take(pa.array([0] * words.num_rows, pa.int32()))
        signed = words[f"{_BITS}_sum"].combine_chunks().view(pa.int64())
        parts.append(pa.table([names, words[_WORD], signed], schema=schema))
    # PySpark takes a table that begins with empty chunks for an empty one.
    return pa.concat_tables(parts).combine_chunks()
