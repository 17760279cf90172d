"""The functions of this room that lower rooms call for a Spark session or a DataFrame.

`deltalakedb` registers this module as the extension for objects of PySpark.
"""

from __future__ import annotations

from deltalakedb.spark.api.sql import sql
from deltalakedb.spark.io.stage import frame_source
from deltalakedb.spark.jobs.tasks import spark_parser, spark_parts
from deltalakedb.spark.jobs.verify import log_reader

__all__ = ["frame_source", "log_reader", "spark_parser", "spark_parts", "sql"]
