"""Spark's executors make the files of an archive, by the function that everybody uses.

The rows come from the catalog, which only the driver reads: all of them in one transaction. What
the executors have written, the driver reads back, before anything is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from deltalakedb.retention.archive import ArchivedFile, Part, PartWriter, write_part
from deltalakedb.spark.jobs.tasks import check_session, in_order
from deltalakedb.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_parts(spark: SparkSession, location: str, options: Mapping[str, str]) -> PartWriter:
    """Write parts on the executors of a session; they and this process have to reach `location`."""
    check_session(spark, location)
    given = dict(options)

    def work(part: Part) -> ArchivedFile:
        return write_part(open_storage(location, given), part)

    def write_all(parts: Iterable[Part]) -> Iterator[ArchivedFile]:
        # Each holds many rows: no more are in memory than run at once, and are read meanwhile.
        yield from in_order(spark, work, parts, ahead=1)

    return write_all
