"""The jar with the log store and the catalog class for Delta on Spark, and the names in it.

`python -m deltalakedb.spark.delta.jar` prints where it is, for `spark-submit --jars`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from deltalakedb.errors import DeltaLakeDbError, MissingDriverError

JAR: Final = Path(__file__).with_name("deltalakedb-delta.jar")
SOURCES_KEY: Final = "Deltalakedb-Sources"
LOG_STORE: Final = "io.deltalakedb.CatalogLogStore"
CATALOG: Final = "io.deltalakedb.LakeCatalog"
SCAN: Final = "io.deltalakedb.LakeScan"
EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The coordinates of the Delta that the jar is compiled against and tested with."""


def jar() -> Path:
    """The jar; MissingDriverError where it was not built."""
    if not JAR.is_file():
        raise MissingDriverError(
            "Delta on Spark needs the jar of deltalakedb, which this installation lacks",
            why=f"There is no {JAR}: it was installed from sources, or built without a JDK",
            fix="Install a wheel of deltalakedb, or run `make jar` in its sources with a JDK 17",
        )
    return JAR


def main() -> int:
    """Print the path of the jar, or an error; return the exit code."""
    try:
        sys.stdout.write(f"{jar()}\n")
    except DeltaLakeDbError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
