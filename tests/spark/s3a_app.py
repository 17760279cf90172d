"""An application whose table is on S3: Hadoop reads it, by the options that the lake was given.

The argument is JSON: `url`, `location`, `storage_options`, `jars`, `scratch`. The last line of
output is JSON: what was found. Everything that Spark logs goes to the standard error.
"""

import json
import os
import sys
from pathlib import Path

import deltalakedb
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.java import java_home

from support.spark import new_session


def main() -> None:
    given = json.loads(sys.argv[1])
    os.environ["JAVA_HOME"] = str(java_home())
    spark = new_session(Path(given["scratch"]), **{"spark.jars": given["jars"]})
    spark.sparkContext.setLogLevel("INFO")
    options = given["storage_options"]
    with deltalakedb.connect(given["url"], storage_options=options) as lake:
        rows = spark.range(20).selectExpr("id", "concat('a b ', id % 2) as part")
        table = lake.create_table(
            "t", location=given["location"], schema=rows.schema, partition_by=["part"]
        )
        table.append(rows)
        target = DeltaTable.forName(spark, "t", catalog=lake)
        target.delete("id < 5")
        target.update("id = 7", {"id": "700L"})
        frame = target.toDF(where="id > 10")
        plan = str(frame._jdf.queryExecution().toString())
        found = {
            "ids": sorted(row.id for row in frame.collect()),
            "files": sorted(frame.inputFiles()),
            "plan": plan,
            "settings": [name for name, _ in spark.sparkContext.getConf().getAll()],
        }
        spark.conf.set("spark.deltalakedb.nativeFormat", "false")
        source = spark.read.format("deltalakedb").option("catalog", given["url"])
        named = {f"storage.{name}": value for name, value in options.items()}
        again = source.options(**named).load("t")
        found["source"] = sorted(row.id for row in again.collect())
        found["source plan"] = str(again._jdf.queryExecution().toString())
    spark.stop()
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
