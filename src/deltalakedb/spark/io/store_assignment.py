"""Store assignment: values are cast to the types of columns as in Delta.

- Fields of structs are cast by name. Spark's own cast goes by position, and would assign values to
  other fields without an error.
- `spark.sql.storeAssignmentPolicy` decides about values that do not fit, as in Delta, and not
  `spark.sql.ansi.enabled`: only LEGACY lets values be truncated or lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql import types as T  # noqa: N812 - its usual name

from deltalakedb.errors import InvalidConditionError, SchemaMismatchError
from deltalakedb.spark.io.scan import spark_says

_POLICY: Final = "spark.sql.storeAssignmentPolicy"
_UNFIT: Final = "deltalakedb:value:"
_END: Final = ":deltalakedb"
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_TIMES: Final = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True)
class Value:
    """The new value of a column or field; `kind` is the type of the column in Spark."""

    name: str
    column: Column
    kind: Any


def fitted(probe: DataFrame, values: Sequence[Value], fix: str) -> list[Column]:
    """Values cast to the types of their columns; `probe` has the columns that they may name.

    A value that Spark cannot resolve is refused; the error names the column, and has this `fix`.
    """
    if not values:
        return []
    policy = policy_of(probe.sparkSession)
    kinds = _types(probe, values, fix)
    columns = [
        cast_by_name(value.column, kind, value.kind, value.name, policy=policy)
        for value, kind in zip(values, kinds, strict=True)
    ]
    # Not every type can be cast to every other.
    _check(probe, values, kinds, columns)
    return columns


def policy_of(spark: SparkSession) -> str:
    """The policy: refuse values that do not fit (ANSI), types that may not (STRICT), or nothing."""
    return str(spark.conf.get(_POLICY, "ANSI")).upper()


def _types(probe: DataFrame, values: Sequence[Value], fix: str) -> list[Any]:
    """Spark's types of values, by one analysis; after an error, by one for each."""
    try:
        fields = probe.select(*(value.column.alias("v") for value in values)).schema.fields
        return [field.dataType for field in fields]
    except AnalysisException as error:
        last = error
    for value in values:
        try:
            _ = probe.select(value.column.alias("v")).schema
        except AnalysisException as error:
            raise InvalidConditionError(
                f"The value of {value.name!r} cannot be used", why=spark_says(error), fix=fix
            ) from error
    raise last


def _check(
    probe: DataFrame, values: Sequence[Value], kinds: Sequence[Any], columns: Sequence[Column]
) -> None:
    try:
        _ = probe.select(*columns).schema
        return
    except AnalysisException as error:
        last = error
    for value, kind, column in zip(values, kinds, columns, strict=True):
        try:
            _ = probe.select(column).schema
        except AnalysisException as error:
            raise SchemaMismatchError(
                f"{value.name!r} is {_text(value.kind)} in the table, and its new value is "
                f"{_text(kind)}",
                why=spark_says(error),
                fix="Convert the value to the type of the column",
            ) from error
    raise last


def cast_by_name(value: Column, source: Any, target: Any, name: str, *, policy: str) -> Column:
    """A value cast from one type to another; fields that it lacks are null."""

    def inner(part: Column, before: Any, after: Any, below: str) -> Column:
        return cast_by_name(part, before, after, f"{name}.{below}", policy=policy)

    if source.simpleString() == target.simpleString():
        return value
    if isinstance(source, T.StructType) and isinstance(target, T.StructType):
        rest = {field.name.lower(): field for field in source.fields}
        parts = []
        for field in target.fields:
            known = rest.pop(field.name.lower(), None)
            part = (
                F.lit(None).cast(field.dataType)
                if known is None
                else inner(value.getField(known.name), known.dataType, field.dataType, field.name)
            )
            parts.append(part.alias(field.name))
        if rest:
            extra = ", ".join(f"{name}.{field.name}" for field in rest.values())
            raise SchemaMismatchError(
                f"The table has no field {extra}",
                why=f"{name} is {_text(target)} there",
                fix="Leave it out, or let a MERGE add it with withSchemaEvolution()",
            )
        return F.when(value.isNotNull(), F.struct(*parts))
    if isinstance(source, T.ArrayType) and isinstance(target, T.ArrayType):
        kinds = source.elementType, target.elementType
        return F.transform(value, lambda one: inner(one, *kinds, "element"))
    if isinstance(source, T.MapType) and isinstance(target, T.MapType):
        keys, items = (source.keyType, target.keyType), (source.valueType, target.valueType)
        if keys[0].simpleString() != keys[1].simpleString():
            value = F.transform_keys(value, lambda key, _: inner(key, *keys, "key"))
        if items[0].simpleString() != items[1].simpleString():
            value = F.transform_values(value, lambda _, one: inner(one, *items, "value"))
        return value
    return _cast(value, source, target, name, policy)


def _cast(value: Column, source: Any, target: Any, name: str, policy: str) -> Column:
    """A value that is no struct, array or map; one that does not fit fails the query."""
    if policy == "LEGACY" or _always_fits(source, target):
        return value.cast(target)
    if policy == "STRICT":
        raise SchemaMismatchError(
            f"{name!r} is {_text(target)} in the table, and its new value is {_text(source)}",
            why=f"{_POLICY} is STRICT, and not every such value fits",
            fix="Convert the value to the type of the column",
        )
    details = json.dumps([name, source.simpleString(), target.simpleString()])
    text = F.substring(value.cast("string"), 1, 100)
    error = F.raise_error(F.concat(F.lit(_UNFIT + details), text, F.lit(_END)))
    return F.coalesce(value.try_cast(target), F.when(value.isNotNull(), error.cast(target)))


def _always_fits(source: Any, target: Any) -> bool:
    """Whether every value of a type fits another."""
    if isinstance(source, T.NullType):
        return True
    before, after = source.simpleString(), target.simpleString()
    if before in _NUMBERS and after in _NUMBERS:
        return _NUMBERS.index(before) <= _NUMBERS.index(after)
    if isinstance(target, T.DecimalType):
        whole = target.precision - target.scale
        if isinstance(source, T.DecimalType):
            more = target.scale - source.scale
            return bool(more >= 0 and whole >= source.precision - source.scale)
        return bool(whole >= _DIGITS.get(before, 100))
    if before in _TIMES and after in _TIMES:
        return bool(after != "date")
    return isinstance(target, T.StringType) and isinstance(source, T.AtomicType)


def unfit(text: str, table: str) -> SchemaMismatchError | None:
    """The error for the message of a failed query, if a value did not fit its column."""
    start = text.find(_UNFIT)
    if start < 0:
        return None
    rest = text[start + len(_UNFIT) :]
    (name, source, target), end = json.JSONDecoder().raw_decode(rest)
    value = rest[end:].partition(_END)[0]
    return SchemaMismatchError(
        f"The value {value!r} does not fit column {name!r} of table {table!r}",
        why=f"It is a {source}, and the column is {target}",
        fix="Change the expression, or the type of the column. With spark.sql.storeAssignmentPolicy"
        "=LEGACY such values are truncated, or become null",
    )


def _text(kind: Any) -> str:
    return str(kind.simpleString())[:200]
