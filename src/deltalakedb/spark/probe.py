"""`python -m deltalakedb.spark.probe` starts Spark, counts a row, tries its internals and stops it.

The result is one line of JSON on standard output. It runs in a process of its own, so that neither
its Java nor its settings stay with the caller.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from deltalakedb.errors import ConfigurationError, DeltaLakeDbError
from deltalakedb.lake import Lake
from deltalakedb.spark.delta.configure import configure
from deltalakedb.spark.delta.statements import broken_statements
from deltalakedb.spark.io.file_index import broken_scans
from deltalakedb.spark.io.scan import scan
from deltalakedb.spark.io.spark_internals import broken_internals, hadoop_version, has_file_system
from deltalakedb.spark.java import java_home


def probe(folder: Path) -> dict[str, Any]:
    """Start Spark on one core, with its own configuration; return its versions and checks."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = (
        SparkSession.builder.master("local[1]")
        .appName("deltalakedb-doctor")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
    )
    delta: dict[str, Any] = {}
    lake = Lake.connect(f"sqlite:///{folder}/lake.db", warehouse=str(folder / "warehouse"))
    table = lake.create_table_as("probe", [{"id": 1}])
    try:
        builder = configure(builder, lake)
    except ConfigurationError as missing:
        delta = {"missing": missing.what, "fix": str(missing.fix)}
    session = builder.getOrCreate()
    try:
        return {
            "spark": session.version,
            "rows": session.range(1).count(),
            "hadoop": hadoop_version(session),
            "s3a": has_file_system(session, "s3a"),
            "broken": {
                **broken_internals(session),
                **broken_scans(scan(session, table.snapshot())),
            },
            "delta": delta or {"broken": broken_statements(session)},
        }
    finally:
        session.stop()


def main() -> int:
    """Print the result; return the exit code."""
    try:
        with tempfile.TemporaryDirectory(prefix="deltalakedb-doctor-") as folder:
            result = probe(Path(folder))
    except DeltaLakeDbError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
