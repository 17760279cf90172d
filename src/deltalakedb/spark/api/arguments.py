"""Arguments that only Spark's calls have: conditions, assignments and frames of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from deltalakedb.arguments import refuse, require_kind, require_texts
from deltalakedb.errors import InvalidConditionError
from deltalakedb.spark.api.errors import SparkParseError
from deltalakedb.spark.dml.conditions import as_column
from deltalakedb.spark.io.scan import spark_says
from deltalakedb.spark.io.spark_internals import parse_expression


def check_condition(value: object, name: str = "condition") -> None:
    """Refuse a value that is neither SQL nor a Column; Spark resolves it later."""
    as_column(value, name)


def check_syntax(spark: SparkSession, expressions: Iterable[object]) -> None:
    """Refuse SQL that Spark cannot parse; its columns and functions are resolved later."""
    try:
        for text in expressions:
            if isinstance(text, str):
                parse_expression(spark, text)
    except ParseException as error:
        raise InvalidConditionError(
            "A condition or value of this clause cannot be parsed",
            why=spark_says(error),
            fix="Correct it: it is an expression in Spark's SQL",
        ) from error


def check_assignments(name: str, values: object) -> Mapping[str, Any]:
    """New values by the names of their columns."""
    fix = f"Pass columns and expressions, e.g. {name}={{'price': 'price * 2'}}"
    if not isinstance(values, Mapping) or not values:
        refuse(name, values, "a dict that sets at least one column", fix=fix)
    for column, value in values.items():
        if not isinstance(column, str) or not column.strip():
            refuse(f"Each key of {name}", column, "the name of a column", fix=fix)
        as_column(value, f"The value of {column!r} in {name}")
    return values


def parse_ddl(kind: type[DataType], text: str, what: str, fix: str) -> Any:
    """Parse a type, or a list of columns, in Spark's SQL; `what` is the error for invalid text."""
    try:
        return kind.fromDDL(text)
    except ParseException as error:
        raise SparkParseError(what, why=str(error).strip().partition("\n")[0], fix=fix) from None


def check_frame(name: str, value: object) -> None:
    """Refuse a value that is no DataFrame."""
    require_kind(name, value, DataFrame, "a DataFrame of Spark")


def column_names(name: str, cols: Iterable[object]) -> list[str]:
    """The names of columns, which Delta takes one by one or as one list."""
    names = [part for one in cols for part in (one if isinstance(one, (list, tuple)) else [one])]
    return require_texts(name, names, fix="Pass names of columns, e.g. 'id', 'day'")
