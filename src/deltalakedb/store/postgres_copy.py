r"""Columns as the text that Postgres copies from: no value becomes a Python object on the way.

Values of a row stand between tabs, a null is `\N`, and a backslash is doubled. What is not plain is
left to rows: text that must be encoded (see `postgres.py`), and text with tabs or line ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from deltalakedb.store.relations import Kind, Relation

if TYPE_CHECKING:
    import pyarrow as pa

_ENCODED: Final = tuple(mark.encode() for mark in ("\0", "\t", "\n", "\r", "\ue000"))
_ENCODED_MAP: Final = r"\\u0000|[0-9]e-?[0-9]{5}"
_LONG: Final = 16_383
_BYTES_AT_ONCE: Final = 32 * 1024 * 1024


def plain_columns(relation: Relation, columns: pa.Table) -> list[str] | None:
    """The columns that are not null everywhere; None where a value is not plain."""
    names = []
    for name, kind in zip(relation.columns[1:], relation.kinds[1:], strict=True):
        column = columns[name]
        if column.null_count < len(column):
            if not _is_plain(column, kind):
                return None
            names.append(name)
    return names


def as_text(table_id: str, columns: pa.Table) -> Iterator[memoryview]:
    """Plain columns as lines to copy from, some at a time, each with the table's id first."""
    most = max(1, _BYTES_AT_ONCE * columns.num_rows // max(1, columns.nbytes))
    for start in range(0, columns.num_rows, most):
        yield _lines(table_id, columns.slice(start, most))


def _lines(table_id: str, columns: pa.Table) -> memoryview:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [_texts(column.combine_chunks()) for column in columns.columns]
    ids = pa.scalar(table_id, pa.large_string())
    tab = pa.scalar("\t", pa.large_string())
    lines = pc.binary_join_element_wise(
        ids, *texts, tab, null_handling="replace", null_replacement="\\N"
    )
    every = pa.LargeListArray.from_arrays([0, len(lines)], lines)
    joined = pc.binary_join(every, pa.scalar("\n", pa.large_string()))
    return memoryview(joined.buffers()[2])


def _texts(column: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type == pa.string() and b"\\" in _bytes(column):
        column = pc.replace_substring(column, "\\", "\\\\")
    return column.cast(pa.large_string())


def _is_plain(column: pa.ChunkedArray, kind: Kind) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind in (Kind.LIST, Kind.BYTES):
        return False
    if column.type != pa.string():
        return True
    if kind is Kind.MAP:
        # Many files share a partition.
        maps = column.unique()
        found = pc.match_substring_regex(maps, _ENCODED_MAP)
        found = pc.or_(found, pc.greater(pc.binary_length(maps), _LONG))
        if pc.any(found).as_py():
            return False
        column = pa.chunked_array([maps])
    return not any(mark in text for text in map(_bytes, column.chunks) for mark in _ENCODED)


def _bytes(texts: pa.Array) -> bytes:
    """All of the texts, one after the other: what none of them has is not in there."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return b""
    ends = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[ends[texts.offset] : ends[texts.offset + len(texts)]])
