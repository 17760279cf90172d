"""Statements that need all that our jar uses of Delta and Spark, for `doctor --spark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from deltalakedb.spark.io.spark_internals import SPARK_ERRORS, first_line

# What of the jar a statement tries, and the statement; each needs those before it.
_STATEMENTS: Final[Mapping[str, str]] = {
    "new tables": "CREATE TABLE deltalakedb_probe (id BIGINT) USING delta",
    "commits": "INSERT INTO deltalakedb_probe VALUES (1)",
    "listings": "SELECT * FROM deltalakedb_probe",
    "lists of tables": "SHOW TABLES",
    "renamed tables": "ALTER TABLE deltalakedb_probe RENAME TO deltalakedb_probe_2",
    "dropped tables": "DROP TABLE deltalakedb_probe_2",
}


def broken_statements(spark: SparkSession) -> dict[str, str]:
    """What does not work first, and its error; empty if all of it does.

    The session is a client of a lake with a warehouse.
    """
    for name, statement in _STATEMENTS.items():
        try:
            spark.sql(statement).collect()
        except SPARK_ERRORS as error:
            return {name: first_line(error)}
    return {}
