"""Whether Spark works here: `python -m deltalakedb.spark.probe` starts one, counts a row, stops it.

What was found is one line of JSON on standard output. It is a process of its own, so that neither
its Java nor its settings stay with whoever asks.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from deltalakedb.errors import DeltaLakeDbError
from deltalakedb.spark.io.cloned_session import in_clone
from deltalakedb.spark.java import java_home

S3A: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def probe(folder: Path) -> dict[str, Any]:
    """Start Spark on one core, with whatever its configuration brings; what it is, and can do."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session: Any = (
        SparkSession.builder.master("local[1]")
        .appName("deltalakedb-doctor")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    try:
        java = session.sparkContext._jvm  # noqa: SLF001 - the only way to Hadoop
        hadoop = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        return {
            "spark": session.version,
            "rows": in_clone(session.range(1), {}).count(),
            "hadoop": java.org.apache.hadoop.util.VersionInfo.getVersion(),
            "s3a": hadoop.getClassByNameOrNull(S3A) is not None,
        }
    finally:
        session.stop()


def main() -> int:
    """Print what was found; the exit code."""
    try:
        with tempfile.TemporaryDirectory(prefix="deltalakedb-doctor-") as folder:
            found = probe(Path(folder))
    except DeltaLakeDbError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
