"""Values of structs fitted to a column by the names of their fields, as Delta does it.

Spark's own cast goes by position: it would put values under the wrong names without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalakedb.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def fitted(value: Column, target: Any, probe: DataFrame | None, name: str) -> Column:
    """A value as a column of a table has it; `probe` is a frame that it can be resolved with."""
    if probe is None or not has_struct(target):
        return value.cast(target)
    from pyspark.errors import AnalysisException

    try:
        (found,) = probe.select(value.alias("v")).schema.fields
    except AnalysisException:
        # What is wrong with it is told where all of it is resolved.
        return value.cast(target)
    return by_name(value, found.dataType, target, name)


def by_name(value: Column, source: Any, target: Any, name: str) -> Column:
    """A value of one type as one of another; fields that it lacks are null."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name
    from pyspark.sql import types as T  # noqa: N812

    if source.simpleString() == target.simpleString():
        return value
    if isinstance(source, T.StructType) and isinstance(target, T.StructType):
        there = {field.name.lower(): field for field in source.fields}
        parts = []
        for field in target.fields:
            known = there.pop(field.name.lower(), None)
            inner = f"{name}.{field.name}"
            made = (
                F.lit(None).cast(field.dataType)
                if known is None
                else by_name(value.getField(known.name), known.dataType, field.dataType, inner)
            )
            parts.append(made.alias(field.name))
        if there:
            extra = ", ".join(f"{name}.{field.name}" for field in there.values())
            raise SchemaMismatchError(
                f"The table has no field {extra}",
                why=f"{name} is {target.simpleString()[:200]} there",
                fix="Leave it out, or let a MERGE add it with withSchemaEvolution()",
            )
        return F.when(value.isNotNull(), F.struct(*parts))
    if isinstance(source, T.ArrayType) and isinstance(target, T.ArrayType):
        kinds = source.elementType, target.elementType
        return F.transform(value, lambda one: by_name(one, *kinds, f"{name}.element"))
    if (
        isinstance(source, T.MapType)
        and isinstance(target, T.MapType)
        and source.keyType == target.keyType
    ):
        kinds = source.valueType, target.valueType
        return F.transform_values(value, lambda _, one: by_name(one, *kinds, f"{name}.value"))
    return value.cast(target)


def has_struct(kind: Any) -> bool:
    """Whether values of a type have fields."""
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(kind, T.ArrayType):
        return has_struct(kind.elementType)
    if isinstance(kind, T.MapType):
        return has_struct(kind.valueType)
    return isinstance(kind, T.StructType)
