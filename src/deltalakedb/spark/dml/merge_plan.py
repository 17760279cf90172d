"""Which files a MERGE has to look at: what its condition says of the target, and the source's keys.

Only a part of the condition that speaks of the target alone can be asked of the catalog. An
equality with the source can be too, once the source is known: its keys lie between two values, or
are a few.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import sqlglot
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError

from deltalakedb.actions.datatypes import StructType
from deltalakedb.conditions.sql import SparkSql
from deltalakedb.spark.api.query_text import conjuncts
from deltalakedb.spark.io.scan import quoted, spark_types

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SENT_BYTES: Final = 64 * 1024 * 1024
# What a value takes, about; any other takes 8 bytes.
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
    """The parts of a condition that help to find files."""

    target: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()


def read_condition(
    text: str | None, schema: StructType, *, target: str, source: str, source_columns: list[str]
) -> MergeCondition:
    """Take a condition apart; nothing of it where it cannot be read."""
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
    """What the source's keys say of the rows of the target that may match, as SQL."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    types = spark_types(schema)
    given = {
        key: source.select(F.expr(key.source)).schema.fields[0].dataType == types[key.column]
        for key in keys
    }
    used = [
        key
        for key, same in given.items()
        if same and str(schema.field(key.column).type) in _BOUNDED
    ]
    if not used:
        return []
    partitions = {name.lower() for name in partition_columns}
    asked = []
    for i, key in enumerate(used):
        value = _number(F.expr(key.source), str(schema.field(key.column).type))
        if key.column.lower() in partitions:
            asked.append(F.slice(F.collect_set(value), 1, _MOST_VALUES + 1).alias(f"v{i}"))
        else:
            asked.append(F.struct(F.min(value), F.max(value)).alias(f"v{i}"))
    (row,) = source.select(*asked).collect()
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
    """Days and moments as numbers: Spark has some before and after those of Python."""
    from pyspark.sql import functions as F  # noqa: N812

    if kind == "date":
        return F.unix_date(value)
    return F.unix_micros(value) if kind == "timestamp" else value


def _literal(value: Any, kind: str) -> str | None:
    """A value (see `_number`) as SQL; None where it cannot be said."""
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
    """The same rows, sent to everybody for a join where they are few: Spark cannot know how many.

    Where it is told to send nothing (`spark.sql.autoBroadcastJoinThreshold`), nothing is sent.
    """
    from pyspark.sql import functions as F  # noqa: N812

    allowed = str(frame.sparkSession.conf.get("spark.sql.autoBroadcastJoinThreshold"))
    if allowed.startswith("-"):
        return frame
    width = sum(_WIDTHS.get(field.dataType.typeName(), 8) for field in frame.schema.fields)
    return F.broadcast(frame) if rows * width <= _SENT_BYTES else frame


def _text(part: sql.Expr) -> str:
    return part.sql(dialect=SparkSql, comments=False)


class _Sides:
    """Which columns are the target's, and which the source's."""

    def __init__(
        self, schema: StructType, target: str, source: str, source_columns: list[str]
    ) -> None:
        self._schema = schema
        self._target, self._source = target.lower(), source.lower()
        self._source_columns = {name.lower() for name in source_columns}

    def of(self, part: sql.Expr) -> set[str]:
        """The sides whose columns a part names; `unknown` where that cannot be told."""
        return {self._side(column) for column in part.find_all(sql.Column)}

    def target_column(self, part: sql.Expr) -> str | None:
        """The column of the target that an expression is, if it is nothing else."""
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
