"""Exact statistics of the rows that go into a file, batch by batch; and NOT NULL, at any depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deltalakedb.actions.datatypes import ArrayType, ColumnPath, DataType, MapType, StructType
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.statistics import Statistics, covered_columns, encode_stats
from deltalakedb.errors import ConstraintViolatedError
from deltalakedb.staging.fit import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


class Covered:
    """The columns of a table with statistics, and those that must not be null."""

    def __init__(
        self,
        schema: StructType,
        partition_columns: Sequence[str],
        configuration: Mapping[str, str],
    ) -> None:
        properties = TableProperties(configuration)
        self.schema = schema
        self.prefix_length = properties.string_prefix_length
        self.columns = covered_columns(
            schema,
            partition_columns=partition_columns,
            num_indexed=properties.num_indexed_cols,
            named=properties.stats_columns,
        )
        self.required = _required(schema, ())
        self.promised = [field for field in schema.fields if promises_inside(field.type)]
        """Columns with arrays or maps inside which the table allows no null."""

    def encode(self, stats: Statistics) -> str:
        """Statistics of these columns as JSON text."""
        return encode_stats(
            stats, self.schema, columns=self.columns, string_prefix_length=self.prefix_length
        )


def promises_inside(kind: DataType) -> bool:
    """Whether the elements or values of a type, or fields of these, must not be null."""
    if isinstance(kind, StructType):
        return any(promises_inside(field.type) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return not kind.contains_null or _promises(kind.element_type)
    if isinstance(kind, MapType):
        return (
            not kind.value_contains_null or _promises(kind.key_type) or _promises(kind.value_type)
        )
    return False


def _promises(kind: DataType) -> bool:
    fields = kind.fields if isinstance(kind, StructType) else ()
    return promises_inside(kind) or any(not f.nullable or _promises(f.type) for f in fields)


def _required(struct: StructType, above: ColumnPath) -> list[ColumnPath]:
    """Columns that are NOT NULL; inside structs too, where the struct itself is not null."""
    paths: list[ColumnPath] = []
    for field in struct.fields:
        path = (*above, field.name)
        if not field.nullable:
            paths.append(path)
        if isinstance(field.type, StructType):
            paths += _required(field.type, path)
    return paths


def check_required(batch: pa.RecordBatch, covered: Covered, *, table: str) -> None:
    """Refuse a null where the table has NOT NULL."""
    import pyarrow.compute as pc

    for path in covered.required:
        array = _column(batch, path)
        nulls = array.null_count
        if nulls and len(path) > 1:
            # A null of the struct around it is none of this field.
            inside = pc.and_(array.is_null(), _column(batch, path[:-1]).is_valid())
            nulls = pc.sum(inside).as_py() or 0
        if nulls:
            raise _null(".".join(path), table, nulls, "rows")
    for column in covered.promised:
        _check_inside(batch.column(column.name), column.type, column.name, table)


def _check_inside(array: Any, kind: DataType, at: str, table: str) -> None:
    """Refuse nulls in elements, values and fields where the table has NOT NULL."""
    # What a null around them hides is no value.
    there = whole(array.drop_null())
    parts: list[tuple[Any, DataType, str, bool]] = []
    if isinstance(kind, StructType):
        parts = [(_below(there, f.name), f.type, f.name, f.nullable) for f in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [(there.flatten(), kind.element_type, "element", kind.contains_null)]
    elif isinstance(kind, MapType):
        parts = [
            (there.keys, kind.key_type, "key", True),
            (there.items, kind.value_type, "value", kind.value_contains_null),
        ]
    for values, inner, name, may_be_null in parts:
        if values.null_count and not may_be_null:
            raise _null(f"{at}.{name}", table, values.null_count, "values")
        _check_inside(values, inner, f"{at}.{name}", table)


def _below(array: Any, name: str) -> Any:
    import pyarrow.compute as pc

    return pc.struct_field(array, [name])


def _null(column: str, table: str, nulls: int, what: str) -> ConstraintViolatedError:
    problem = "have no value for it" if what == "rows" else "are null"
    return ConstraintViolatedError(
        f"Column {column!r} of table {table!r} is NOT NULL, and {nulls} of the {what} to be "
        f"written {problem}",
        fix="Fill the column, or leave those rows out",
    )


class Counter:
    """Statistics of the rows of one file so far."""

    def __init__(self, covered: Covered) -> None:
        self._covered = covered
        self.rows = 0
        self._nulls: dict[ColumnPath, int] = dict.fromkeys(covered.columns, 0)
        self._low: dict[ColumnPath, Any] = {}
        self._high: dict[ColumnPath, Any] = {}
        self._unbounded: set[ColumnPath] = set()
        self._unknown: set[ColumnPath] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch with the table's logical columns."""
        self.rows += batch.num_rows
        for path in self._covered.columns:
            array = _column(batch, path)
            self._nulls[path] += array.null_count
            if array.null_count < len(array):
                self._bound(path, array)

    def _bound(self, path: ColumnPath, array: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = array.type
        if not _has_bounds(kind):
            return
        if pa.types.is_floating(kind) and pc.any(pc.is_nan(array)).as_py():
            # NaN is above every number, and JSON has no NaN: there is no maximum.
            self._unbounded.add(path)
            array = array.filter(pc.invert(pc.is_nan(array)))
        bounds = pc.min_max(array)
        try:
            low, high = bounds["min"].as_py(), bounds["max"].as_py()
        except (ValueError, OverflowError):
            # Python has no such value, e.g. a timestamp after the year 9999: there are no bounds.
            self._unknown.add(path)
            return
        if low is None:
            return
        self._low[path] = low if path not in self._low else min(low, self._low[path])
        self._high[path] = high if path not in self._high else max(high, self._high[path])

    def stats(self) -> str:
        """The JSON of `add.stats`."""
        low = {path: value for path, value in self._low.items() if path not in self._unknown}
        above = self._unbounded | self._unknown
        high = {path: value for path, value in self._high.items() if path not in above}
        stats = Statistics(
            num_records=self.rows,
            min_values=low,
            max_values=high,
            null_count=self._nulls,
            tight_bounds=True,
        )
        return self._covered.encode(stats)


def _column(batch: pa.RecordBatch, path: ColumnPath) -> Any:
    import pyarrow.compute as pc

    array = batch.column(path[0])
    # Also the nulls of the structs around it count.
    return array if len(path) == 1 else pc.struct_field(array, list(path[1:]))


def _has_bounds(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_string(kind)
    )
