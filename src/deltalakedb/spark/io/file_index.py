"""Scans whose files are listed when they run, with the filters that Spark has by then.

They need our jar (`LakeScan`) and a web server for its questions. Without them, with a version of
Spark that they are not tested with, and where `spark.deltalakedb.fileIndex` is `false`, files are
listed when a DataFrame is created.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from deltalakedb.errors import MissingDriverError
from deltalakedb.spark.delta.jar import JAR, SCAN
from deltalakedb.spark.io.spark_internals import is_connect, java_object, java_session

if TYPE_CHECKING:
    from deltalakedb.snapshot import Snapshot

SWITCH: Final = "spark.deltalakedb.fileIndex"
"""The setting of a session that turns such scans off (`false`), or on in another Spark (`true`)."""
_TESTED: Final = ("4.2.",)
_loaded: Final[weakref.WeakKeyDictionary[SparkContext, Any]] = weakref.WeakKeyDictionary()


def lake_scans(spark: SparkSession) -> LakeScans | None:
    """The scans of a session that list files when they run; None where it cannot have them."""
    if is_connect(spark) or not JAR.is_file():
        return None
    tested = str(spark.version.startswith(_TESTED)).lower()
    if str(spark.conf.get(SWITCH, tested)).strip().lower() != "true":
        return None
    context = spark.sparkContext
    if context not in _loaded:
        try:
            from deltalakedb.spark.io.file_service import file_service
        except MissingDriverError:
            return None
        service = file_service()
        _loaded[context] = java_object(spark, str(JAR), SCAN, service.address, service.token)
    return LakeScans(spark, _loaded[context])


@dataclass(frozen=True, slots=True)
class LakeScans:
    """Opens scans in a session."""

    spark: SparkSession
    java: Any

    def is_vectorised(self, data: StructType, settings: Mapping[str, str]) -> bool:
        """Whether Spark reads such rows in vectors, with other settings than those of the session.

        Otherwise the values of a file are copied for each of its rows.
        """
        return bool(self.java.isVectorised(java_session(self.spark, settings), data.json()))

    def open(
        self,
        snapshot: Snapshot,
        *,
        where: str | None,
        alias: str | None,
        data: StructType,
        partitions: StructType,
        options: Mapping[str, str],
        settings: Mapping[str, str],
        has_deleted_rows: bool,
    ) -> DataFrame:
        """The live rows of a snapshot, with the columns of its files and its partition columns.

        `where` prunes files beside the filters of Spark, and no rows; the table has the name
        `alias` in it.
        """
        from deltalakedb.spark.io.file_service import scan_of

        zone = str(self.spark.conf.get("spark.sql.session.timeZone"))
        java = self.java.open(
            java_session(self.spark, {}),
            java_session(self.spark, settings),
            scan_of(snapshot, where, zone, alias).text(),
            snapshot.table.name,
            data.json(),
            partitions.json(),
            dict(options),
            has_deleted_rows,
            snapshot.size_bytes,
        )
        return DataFrame(java, self.spark)


def broken_scans(frame: DataFrame) -> dict[str, str]:
    """What does not work of these scans with this Spark, and its error; for `doctor --spark`.

    The frame has one row, whose `id` is 1.
    """
    what = "filters that reach the catalog"
    try:
        counts = [frame.where(f"id = {number}").count() for number in (1, 2)]
    except (Py4JError, PySparkException) as error:
        return {what: str(error).strip().partition("\n")[0]}
    return {} if counts == [1, 0] else {what: "the result is not the expected one"}
