"""Spark's executors parse the commit files of an import, by the functions that everybody uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from deltalakedb.importing.parsing import Parser, Task, parse
from deltalakedb.spark.jobs.tasks import check_session, in_order
from deltalakedb.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltalakedb.importing.log_rows import LogBatch


def spark_parser(spark: SparkSession, location: str, options: Mapping[str, str]) -> Parser:
    """Parse tasks on the executors of a session; they have to reach `location`."""
    check_session(spark, location)
    given = dict(options)

    def work(task: Task) -> LogBatch:
        return parse(open_storage(location, given), task)

    def parse_all(tasks: Iterable[Task]) -> Iterator[LogBatch]:
        yield from in_order(spark, work, tasks)

    return parse_all
