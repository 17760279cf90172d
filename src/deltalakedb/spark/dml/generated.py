"""Generated columns: values that follow from others of the same row, by an expression of SQL.

Rows that come without such a column get its value; of rows that have it, it is checked. When other
columns of a row are changed, it is made anew. Spark evaluates the expressions, which is why only
writes through DataFrames can do this.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from deltalakedb.actions.datatypes import StructType
from deltalakedb.spark.io.scan import quoted, spark_types

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXPRESSION: Final = "delta.generationExpression"
ANEW: Final = "__deltalakedb_generated"
"""The column that names the generated columns of a row whose values are to be made anew."""


def generated_columns(schema: StructType) -> dict[str, str]:
    """The expression of each generated column, by name."""
    return {
        field.name: str(field.metadata[EXPRESSION])
        for field in schema.fields
        if EXPRESSION in field.metadata
    }


def generated_conditions(schema: StructType) -> dict[str, str]:
    """What rows with generated columns fulfil, by what it is about."""
    types = spark_types(schema)
    return {
        f"generated column {name}": f"{quoted(name)} <=> "
        f"CAST(({expression}) AS {types[name].simpleString()})"
        for name, expression in generated_columns(schema).items()
    }


def filled(frame: DataFrame, schema: StructType) -> DataFrame:
    """The rows with the generated columns that they came without."""
    present = {name.lower() for name in frame.columns}
    missing = [name for name in generated_columns(schema) if name.lower() not in present]
    if not missing:
        return frame
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    types = spark_types(schema)
    for field in schema.fields:
        # Others that are missing are null, and expressions may name them.
        if field.name.lower() not in present and field.name not in missing:
            frame = frame.withColumn(field.name, F.lit(None).cast(types[field.name]))
    expressions = generated_columns(schema)
    values = {name: F.expr(f"({expressions[name]})").cast(types[name]) for name in missing}
    return frame.withColumns(values)


def anew(schema: StructType, given: Collection[str]) -> list[Column]:
    """What stands behind the new values of a row where only some columns were `given`.

    Nothing at all where the table has no generated columns.
    """
    expressions = generated_columns(schema)
    if not expressions:
        return []
    from pyspark.sql import functions as F  # noqa: N812

    names = [F.lit(name) for name in expressions if name not in given]
    return [F.array(*names).cast("array<string>")]


def made_anew(frame: DataFrame, schema: StructType) -> DataFrame:
    """The rows with the values of generated columns that ANEW names, and without it."""
    from pyspark.sql import functions as F  # noqa: N812

    types = spark_types(schema)
    values = {
        name: F.when(
            F.array_contains(ANEW, name), F.expr(f"({expression})").cast(types[name])
        ).otherwise(F.col(quoted(name)))
        for name, expression in generated_columns(schema).items()
    }
    return frame.withColumns(values).drop(ANEW)
