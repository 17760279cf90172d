"""Rows by their positions: the file of a row, as Spark names it, and its number there.

Positions are sent as words of 64 rows each: neighbours share one, so that many rows of a few files
take little room. Whether a row is among them is a join, by Spark's own expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

CHOSEN: Final = "__deltalakedb_chosen"
"""The column that says whether a row is among the positions (see `flagged`)."""
_FILE: Final = "__deltalakedb_at_file"
_WORD: Final = "__deltalakedb_at_word"
_BITS: Final = "__deltalakedb_at_bits"
_MOST_SENT: Final = 200_000
"""How many words are sent to every task: about 30 MB."""


def only(rows: DataFrame, positions: Mapping[str, pa.Array], *, file: str, row: str) -> DataFrame:
    """The rows at some positions; `file` and `row` are the columns that tell theirs."""
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
    """All rows, with CHOSEN: whether they are at these positions."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    words, same, bit = _words(rows, positions, file, row)
    joined = rows.join(words, same, "left")
    chosen = F.coalesce(bit, F.lit(False))  # noqa: FBT003
    return joined.withColumn(CHOSEN, chosen).drop(_FILE, _WORD, _BITS)


def _words(
    rows: DataFrame, positions: Mapping[str, pa.Array], file: str, row: str
) -> tuple[DataFrame, Column, Column]:
    """The positions as a frame, which of its rows is for a row, and whether that has its bit."""
    from pyspark.sql import functions as F  # noqa: N812

    table = _encoded(positions)
    words = rows.sparkSession.createDataFrame(table)
    if table.num_rows <= _MOST_SENT:
        # Spark does not know how few they are, and would shuffle the rows of the table.
        words = F.broadcast(words)
    same = (F.col(file) == F.col(_FILE)) & (F.shiftright(F.col(row), 6) == F.col(_WORD))
    bit = F.getbit(F.col(_BITS), F.col(row).bitwiseAND(63).cast("int")) == 1
    return words, same, bit


def _encoded(positions: Mapping[str, pa.Array]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([(_FILE, pa.string()), (_WORD, pa.int64()), (_BITS, pa.int64())])
    parts = [schema.empty_table()]
    # Arrow does not shift into the sign.
    one: Any = pa.scalar(1, pa.uint64())
    for name, given in positions.items():
        numbers = pc.unique(given.cast(pa.int64()))
        word = pc.shift_right(numbers, 6)
        bits = pc.shift_left(one, pc.bit_wise_and(numbers, 63).cast(pa.uint64()))
        # Each bit is there once: their sum is all of them.
        found = pa.table({_WORD: word, _BITS: bits}).group_by(_WORD).aggregate([(_BITS, "sum")])
        names = pa.array([name]).take(pa.array([0] * found.num_rows, pa.int32()))
        signed = found[f"{_BITS}_sum"].combine_chunks().view(pa.int64())
        parts.append(pa.table([names, found[_WORD], signed], schema=schema))
    # PySpark takes a table that begins with empty chunks for an empty one.
    return pa.concat_tables(parts).combine_chunks()
