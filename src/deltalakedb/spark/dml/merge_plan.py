"""The conditions by which the catalog prunes the files of a MERGE.

These are the parts of its condition that name the target alone, and bounds of the source's keys:
an equality with the source limits a column of the target to a range, or to a few values.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlglot
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from deltalakedb.actions.datatypes import StructType
from deltalakedb.conditions.sql import SparkSql
from deltalakedb.spark.io.query_text import conjuncts
from deltalakedb.spark.io.scan import quoted, spark_types

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SENT_BYTES: Final = 64 * 1024 * 1024
# The size of a value in bytes, roughly; of other types 8.
_WIDTHS: Final = {"string": 40, "binary": 100, "struct": 200, "array": 200, "map": 200}
_MOST_VALUES: Final = 200
_BOUNDED: Final = frozenset(
    {"long", "integer", "short", "byte", "date", "timestamp", "string", "double", "float"}
)


@dataclass(frozen=True, slots=True)
class Key:
    """An equality: a column of the target, and an expression of the source."""

    column: str
    source: str


@dataclass(frozen=True, slots=True)
class MergeCondition:
    """The parts of a condition that prune files."""

    target: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()


def read_condition(
    text: str | None, schema: StructType, *, target: str, source: str, source_columns: list[str]
) -> MergeCondition:
    """Split a condition; empty if it cannot be parsed."""
    if text is None:
        return MergeCondition()
    try:
        tree = sqlglot.parse_one(text, dialect=SparkSql)
    except (SqlglotError, RecursionError):
        return MergeCondition()
    sides = _Sides(schema, target, source, source_columns)
    alone: list[str] = []
    keys: list[Key] = []
    for part in conjuncts(tree):
        if sides.of(part) == {"target"} and not part.find(sql.Subquery, sql.Select):
            alone.append(sides.bare(part))
        elif isinstance(part, sql.EQ):
            for left, right in ((part.left, part.right), (part.right, part.left)):
                column = sides.target_column(left)
                if column is not None and sides.of(right) == {"source"}:
                    keys.append(Key(column, _text(right)))
    return MergeCondition(tuple(alone), tuple(keys))


def source_bounds(
    source: DataFrame, keys: tuple[Key, ...], schema: StructType, partition_columns: list[str]
) -> list[str]:
    """The bounds that the source's keys set for rows of the target that can match, as SQL."""
    types = spark_types(schema)
    used = [
        key
        for key in keys
        if str(schema.field(key.column).type) in _BOUNDED
        and source.select(F.expr(key.source)).schema.fields[0].dataType == types[key.column]
    ]
    if not used:
        return []
    partitions = {name.lower() for name in partition_columns}
    bounds = []
    for i, key in enumerate(used):
        value = _number(F.expr(key.source), str(schema.field(key.column).type))
        if key.column.lower() in partitions:
            bounds.append(F.slice(F.collect_set(value), 1, _MOST_VALUES + 1).alias(f"v{i}"))
        else:
            bounds.append(F.struct(F.min(value), F.max(value)).alias(f"v{i}"))
    (row,) = source.select(*bounds).collect()
    conditions = []
    for i, key in enumerate(used):
        kind = str(schema.field(key.column).type)
        values = [value for value in row[i] if value is not None]
        if not values:
            return ["false"]
        literals = [text for value in values if (text := _literal(value, kind)) is not None]
        if len(literals) < len(values):
            continue
        if key.column.lower() in partitions:
            if len(values) <= _MOST_VALUES:
                conditions.append(f"{quoted(key.column)} IN ({', '.join(literals)})")
        elif kind not in ("double", "float") or all(value == value for value in values):  # noqa: PLR0124
            conditions.append(f"{quoted(key.column)} BETWEEN {literals[0]} AND {literals[1]}")
    return conditions


def _number(value: Column, kind: str) -> Column:
    """Dates and timestamps as numbers: Spark's range is larger than Python's."""
    if kind == "date":
        return F.unix_date(value)
    return F.unix_micros(value) if kind == "timestamp" else value


def _literal(value: Any, kind: str) -> str | None:
    """A value (see `_number`) as a literal of SQL; None if Python cannot write it."""
    if kind == "string":
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
    try:
        if kind == "date":
            return f"DATE '{(_EPOCH + timedelta(days=value)).date().isoformat()}'"
        if kind == "timestamp":
            moment = _EPOCH + timedelta(microseconds=value)
            return f"TIMESTAMP '{moment.isoformat(sep=' ', timespec='microseconds')}'"
    except OverflowError:
        return None
    return repr(value)


def small(frame: DataFrame, rows: int) -> DataFrame:
    """The frame with a broadcast hint if it is small: Spark does not know the number of its rows.

    The setting `spark.sql.autoBroadcastJoinThreshold` can switch this off.
    """
    allowed = str(frame.sparkSession.conf.get("spark.sql.autoBroadcastJoinThreshold"))
    if allowed.startswith("-"):
        return frame
    width = sum(_WIDTHS.get(field.dataType.typeName(), 8) for field in frame.schema.fields)
    return F.broadcast(frame) if rows * width <= _SENT_BYTES else frame


def _text(part: sql.Expr) -> str:
    return part.sql(dialect=SparkSql, comments=False)


class _Sides:
    """Decides whether a column belongs to the target or to the source."""

    def __init__(
        self, schema: StructType, target: str, source: str, source_columns: list[str]
    ) -> None:
        self._schema = schema
        self._target, self._source = target.lower(), source.lower()
        self._source_columns = {name.lower() for name in source_columns}

    def of(self, part: sql.Expr) -> set[str]:
        """The sides whose columns a part names; `unknown` for a column of both or none."""
        return {self._side(column) for column in part.find_all(sql.Column)}

    def target_column(self, part: sql.Expr) -> str | None:
        """The name of a column of the target, if the expression is only that."""
        if isinstance(part, sql.Paren):
            return self.target_column(part.this)
        if not isinstance(part, sql.Column) or self._side(part) != "target":
            return None
        field = self._schema.get(part.name)
        return None if field is None or not self._top_level(part) else field.name

    def bare(self, part: sql.Expr) -> str:
        """The same, without the name of the table before its columns."""

        def strip(node: sql.Expr) -> sql.Expr:
            if isinstance(node, sql.Column) and self._first(node) == self._target:
                parts = node.parts[1:]
                return sql.Column(
                    **dict(zip(("this", "table", "db"), reversed(parts), strict=False))
                )
            return node

        return _text(part.copy().transform(strip))

    def _first(self, column: sql.Column) -> str | None:
        return column.parts[0].name.lower() if len(column.parts) > 1 else None

    def _top_level(self, column: sql.Column) -> bool:
        return len(column.parts) == 1 or (
            len(column.parts) == 2 and self._first(column) == self._target
        )

    def _side(self, column: sql.Column) -> str:
        first = self._first(column)
        if first == self._target and first != self._source:
            return "target"
        if first == self._source and first != self._target:
            return "source"
        name = column.parts[0].name.lower()
        here, there = self._schema.get(name) is not None, name in self._source_columns
        if here == there:
            return "unknown"
        return "target" if here else "source"
