r"""Columns as the text that Postgres copies from: no value becomes a Python object on the way.

CSV, because there an empty text and NULL differ by their quotes alone, and nothing but a quote is
escaped. What is not plain is left to rows: text that must be encoded (see `postgres.py`), and text
with line ends, because a line of its own that reads `\.` would end the copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltalakedb.store.relations import Kind, Relation

if TYPE_CHECKING:
    import pyarrow as pa

_ENCODED: Final = "[\\x00\\n\\r\\x{e000}]"
_ENCODED_MAP: Final = r"\\u0000|[0-9]e-?[0-9]{5}"
_LONG: Final = 16_383


def as_csv(relation: Relation, table_id: str, columns: pa.Table) -> memoryview | None:
    """The rows as CSV with the table's id first; None where a value is not plain."""
    import pyarrow as pa
    from pyarrow import csv

    names = relation.columns[1:]
    for name, kind in zip(names, relation.kinds[1:], strict=True):
        if not _is_plain(columns[name], kind):
            return None
    ids = pa.repeat(table_id, columns.num_rows)
    table = pa.table([ids, *(columns[name] for name in names)], names=list(relation.columns))
    sink = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(table, sink, options)
    return memoryview(sink.getvalue())


def _is_plain(column: pa.ChunkedArray, kind: Kind) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count == len(column):
        return True
    if kind in (Kind.LIST, Kind.BYTES):
        return False
    if column.type != pa.string():
        return True
    found = pc.match_substring_regex(column, _ENCODED)
    if kind is Kind.MAP:
        found = pc.or_(found, pc.match_substring_regex(column, _ENCODED_MAP))
        found = pc.or_(found, pc.greater(pc.binary_length(column), _LONG))
    return not pc.any(found).as_py()
