"""Delta on Spark as a client of a lake: a session in a process of its own, with our classes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.spark.delta.embedded import Service
from deltalakedb.spark.delta.settings import session_settings_for, spark_location
from deltalakedb.spark.java import java_home
from deltalakedb.storage import local_path
from interop.canonical import differences
from interop.limits import Case, judge, judge_all
from interop.readers import SPARK_SETTINGS, DeltaRs, SparkWorker, Unavailable, peer


class LakeSpark(SparkWorker):
    """A session with our log store and catalog class; without a service it is Delta's own."""

    name = "Delta on Spark with a lake"

    def __init__(
        self,
        folder: Path,
        service: Service | None,
        *,
        storage: Mapping[str, str] | None = None,
        python: Path | None = None,
        **options: str,
    ) -> None:
        """Start it; `storage` are settings of Hadoop, and `python` runs the executors."""
        jars = sorted(peer(self.name, "delta-spark").glob("*.jar"))
        if storage:
            jars += sorted(peer("Hadoop for S3", "hadoop-aws").glob("*.jar"))
        known = {"spark.jars": ",".join(map(str, jars)), "spark.master": "local[2]", **options}
        try:
            java = java_home()
            settings = session_settings_for(
                known,
                service or Service("", ""),
                warehouse=str(folder / "spark-warehouse"),
                storage=storage or {},
                timeout=None,
            )
        except DeltaLakeDbError as error:
            raise Unavailable(self.name, str(error)) from error
        every = {
            **SPARK_SETTINGS,
            "spark.local.dir": str(folder),
            "spark.sql.sources.default": "delta",
            # VACUUM and RESTORE list folders in so many tasks.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
            **known,
            **settings,
        }
        environ = {
            "JAVA_HOME": str(java),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(python or sys.executable),
        }
        super().__init__(sys.executable, {"options": every}, environ, folder)

    def use(self, service: Service) -> None:
        """Point the session at another service."""
        self.run(f"SET deltalakedb.uri={service.uri}")
        self.run(f"SET deltalakedb.token={service.token}")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return [tuple(row.values()) for row in self.sql(query).to_pylist()]

    def stream(self, source: str, target: str, checkpoint: Path, **options: str) -> None:
        """Move all that is new in a table to another one by a stream."""
        request = {"stream": source, "options": options, "to": target}
        self.ask({**request, "checkpoint": str(checkpoint)}).result()


def agree(lake: Lake, spark: LakeSpark, name: str, query: str | None = None) -> pa.Table:
    """Check a table by Spark, our reader, delta-rs and `verify`; its rows.

    `query` is read by Spark in place of the table, where types have no form in Arrow.
    """
    table = lake.table(name)
    snapshot = table.snapshot()
    ours = snapshot.to_arrow()
    theirs = spark.sql(query or f"SELECT * FROM {name}")
    assert differences(ours, theirs) == [], f"{name}: {differences(ours, theirs)}"
    # delta-rs finds the files of a clone, which have absolute paths, by the scheme of its table.
    path = local_path(table.location) or spark_location(table.location)
    judge_all([judge(DeltaRs(lake.storage_options), Case(path, snapshot), ours)])
    found = table.verify()
    assert found.ok, found
    return ours
