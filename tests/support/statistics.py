"""A reader of file statistics, for tests: what encoded bounds decode to, by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from deltalakedb.actions import jsonvalue
from deltalakedb.actions.datatypes import ColumnPath, DataType, StructType, physical_name
from deltalakedb.actions.statistics import (
    UNKNOWN,
    Statistics,
    decode_high,
    decode_low,
    loads_tolerant,
)
from deltalakedb.errors import InvalidActionError

_KNOWN: Final = ("numRecords", "minValues", "maxValues", "nullCount", "tightBounds")
_Tree: TypeAlias = "dict[str, tuple[ColumnPath, _Tree | DataType]]"


class StatisticsReader:
    """Parses statistics of one schema; build it once for many files."""

    __slots__ = ("_tree",)

    def __init__(self, schema: StructType) -> None:
        self._tree = _tree_of(schema, ())

    def parse(self, text: str | None) -> Statistics | None:
        """Parse the JSON text; None where it is absent or no JSON object. Never raises."""
        document = loads_tolerant(text)
        if document is None:
            return None
        tight = document.get("tightBounds")
        low: dict[ColumnPath, Any] = {}
        high: dict[ColumnPath, Any] = {}
        nulls: dict[ColumnPath, Any] = {}
        _collect(document.get("minValues"), self._tree, low, decode_low)
        _collect(document.get("maxValues"), self._tree, high, decode_high)
        _collect(document.get("nullCount"), self._tree, nulls, lambda value, _: _count(value))
        return Statistics(
            num_records=_known(_count(document.get("numRecords"))),
            min_values=low,
            max_values=high,
            null_count=nulls,
            tight_bounds=tight if isinstance(tight, bool) else None,
            extra=_extra(document),
        )


def parse_stats(text: str | None, schema: StructType) -> Statistics | None:
    """Parse one file's statistics; for many files build a `StatisticsReader`. Never raises."""
    return StatisticsReader(schema).parse(text)


def _tree_of(struct: StructType, above: ColumnPath) -> _Tree:
    return {
        physical_name(f): (
            (*above, f.name),
            _tree_of(f.type, (*above, f.name)) if isinstance(f.type, StructType) else f.type,
        )
        for f in struct.fields
    }


def _collect(
    value: Any,
    tree: _Tree,
    out: dict[ColumnPath, Any],
    decode: Callable[[Any, DataType], Any],
) -> None:
    if not isinstance(value, dict):
        return
    for name, item in value.items():
        entry = tree.get(name)
        if entry is None or item is None or item is UNKNOWN:
            continue
        path, inner = entry
        if isinstance(inner, dict):
            _collect(item, inner, out, decode)
            continue
        decoded = decode(item, inner)
        if decoded is not UNKNOWN:
            out[path] = decoded


def _extra(document: dict[str, Any]) -> dict[str, Any]:
    extra = {}
    for key in document.keys() - set(_KNOWN):
        try:
            extra.update(jsonvalue.freeze({key: document[key]}))
        except InvalidActionError:
            # It holds a number or a character that could not be written back.
            continue
    return extra


def _count(value: Any) -> Any:
    if type(value) is int and 0 <= value < 2**63:
        return value
    return UNKNOWN


def _known(value: Any) -> Any:
    return None if value is UNKNOWN else value
