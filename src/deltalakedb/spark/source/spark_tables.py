"""Tables and views of Spark's own catalog are no tables of a lake: the one error that says so."""

from __future__ import annotations

from deltalakedb.errors import UnsupportedFeatureError


def not_a_table_of_spark(what: str) -> UnsupportedFeatureError:
    """The error for a call or statement that would make such a table or view."""
    return UnsupportedFeatureError(
        f"{what} does not work with tables of a lake",
        why="It makes a table or view of Spark's own catalog, which Spark could not read or write "
        "rightly",
        fix='Write by df.write.format("deltalakedb").option("catalog", url).save("sales.orders"), '
        'which creates the table where .option("location", …) is given; for SQL make a view of '
        "what is read: deltalakedb.spark.register(spark, url), or "
        'spark.read.format("deltalakedb").option("catalog", url).load("sales.orders")'
        '.createOrReplaceTempView("orders")',
    )
