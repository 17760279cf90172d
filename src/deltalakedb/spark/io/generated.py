"""Generated columns: values that an expression computes from other columns of the row.

- Rows without such a column get its value; in rows with it, the value is checked.
- An update of other columns computes the value again.
- Spark evaluates the expressions, so only DataFrames can be written to such tables.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions.datatypes import StructType
from deltalakedb.spark.io.scan import quoted, spark_types

EXPRESSION: Final = "delta.generationExpression"
RECOMPUTE: Final = "__deltalakedb_generated"
"""The column that names the generated columns of a row whose values are computed again."""


def generated_columns(schema: StructType) -> dict[str, str]:
    """The expression of each generated column, by name."""
    return {
        field.name: str(field.metadata[EXPRESSION])
        for field in schema.fields
        if EXPRESSION in field.metadata
    }


def generated_conditions(schema: StructType) -> dict[str, str]:
    """The conditions that rows with generated columns fulfil, by the names of the checks."""
    types = spark_types(schema)
    return {
        f"generated column {name}": f"{quoted(name)} <=> "
        f"CAST(({expression}) AS {types[name].simpleString()})"
        for name, expression in generated_columns(schema).items()
    }


def with_generated(frame: DataFrame, schema: StructType) -> DataFrame:
    """The rows with the generated columns that they lack."""
    present = {name.lower() for name in frame.columns}
    missing = [name for name in generated_columns(schema) if name.lower() not in present]
    if not missing:
        return frame

    types = spark_types(schema)
    for field in schema.fields:
        # Other missing columns are null, and expressions may name them.
        if field.name.lower() not in present and field.name not in missing:
            frame = frame.withColumn(field.name, F.lit(None).cast(types[field.name]))
    expressions = generated_columns(schema)
    values = {name: F.expr(f"({expressions[name]})").cast(types[name]) for name in missing}
    return frame.withColumns(values)


def recompute_columns(schema: StructType, assigned: Collection[str]) -> list[Column]:
    """The column RECOMPUTE after the new values of a row, of which a user `assigned` these.

    Empty if the table has no generated columns.
    """
    expressions = generated_columns(schema)
    if not expressions:
        return []

    names = [F.lit(name) for name in expressions if name not in assigned]
    return [F.array(*names).cast("array<string>")]


def recomputed(frame: DataFrame, schema: StructType) -> DataFrame:
    """The rows with new values of the generated columns that RECOMPUTE names, and without it."""
    types = spark_types(schema)
    values = {
        name: F.when(
            F.array_contains(RECOMPUTE, name), F.expr(f"({expression})").cast(types[name])
        ).otherwise(F.col(quoted(name)))
        for name, expression in generated_columns(schema).items()
    }
    return frame.withColumns(values).drop(RECOMPUTE)
