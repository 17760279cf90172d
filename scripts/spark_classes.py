"""Use Spark a little, so that Java can keep the classes that it loads meanwhile.

`make peers` runs this with Java's `-XX:ArchiveClassesAtExit`; every Spark of the tests that starts
with the archive is ready in about half of the time. The argument is a folder to work in.
"""

import os
import sys
from pathlib import Path
from typing import Any

from deltalakedb.spark.java import java_home

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.spark import new_session  # noqa: E402 - a Spark like that of the tests


def main() -> None:
    """Write rows, read and count them; then wait until Java is gone."""
    folder = Path(sys.argv[1])
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark: Any = new_session(folder)
    java = spark.sparkContext._gateway.proc  # noqa: SLF001 - nobody else knows when it is gone
    rows = spark.range(20).selectExpr("id", "id % 2 as part", "named_struct('x', id) as s")
    rows.write.partitionBy("part").parquet(str(folder / "t"))
    found = spark.read.parquet(str(folder / "t")).where("id > 3")
    found.join(rows.select("id"), "id").groupBy("s.x").count().orderBy("x").collect()
    spark.stop()
    java.stdin.close()
    java.wait(timeout=120)


if __name__ == "__main__":
    main()
