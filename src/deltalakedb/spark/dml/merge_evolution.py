"""What a MERGE with schema evolution adds to a table: what clauses set and only the source has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deltalakedb.actions.datatypes import ColumnPath, StructType
from deltalakedb.spark.dml.assignments import name_parts


def columns_set(
    names: Iterable[str], source: StructType, *, everything: bool, table: StructType, alias: str
) -> StructType:
    """The columns and fields of a source that assignments name, or `everything` of it.

    The `alias` of the table may stand before the names. Of a struct only the fields that are set
    are there, unless it is set as a whole.
    """
    if everything:
        return source
    paths = [tuple(part.lower() for part in name_parts(name)) for name in names]
    return _named(source, [_bare(path, alias.lower(), table, source) for path in paths], ())


def _bare(path: ColumnPath, alias: str, table: StructType, source: StructType) -> ColumnPath:
    if len(path) == 1 or path[0] != alias:
        return path
    known = table.get(path[1]) is not None or source.get(path[1]) is not None
    return path[1:] if known or table.get(alias) is None else path


def _named(source: StructType, named: Sequence[ColumnPath], above: ColumnPath) -> StructType:
    kept = []
    for field in source.fields:
        path = (*above, field.name.lower())
        if path in named:
            kept.append(field)
        elif isinstance(field.type, StructType) and any(n[: len(path)] == path for n in named):
            kept.append(replace(field, type=_named(field.type, named, path)))
    return StructType(tuple(kept))
