"""Statements that need every internal of Delta and Spark that our jar uses, for `doctor --spark`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_NAME: Final = "deltalakedb_probe"
# What of the jar a statement tries, and the statement; each needs those before it.
_STATEMENTS: Final[Mapping[str, str]] = {
    "new tables": f"CREATE TABLE {_NAME} (id BIGINT) USING delta",
    "commits": f"INSERT INTO {_NAME} VALUES (1)",
    "listings": f"SELECT * FROM {_NAME}",
    "lists of tables": "SHOW TABLES",
    "renamed tables": f"ALTER TABLE {_NAME} RENAME TO {_NAME}_2",
    "dropped tables": f"DROP TABLE {_NAME}_2",
}


def broken_statements(spark: SparkSession) -> dict[str, str]:
    """What does not work first, and its error; empty if all of it does.

    The session is a client of a lake with a warehouse.
    """
    for name, statement in _STATEMENTS.items():
        try:
            spark.sql(statement).collect()
        except PySparkException as error:
            return {name: str(error).strip().partition("\n")[0]}
    return {}
