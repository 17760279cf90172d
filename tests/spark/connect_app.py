"""Spark Connect: a server of its own, a client, and our tables through both. Says what worked.

The argument is JSON: `url` of the catalog, `folder`. Each line of output is JSON: what was tried,
and what became of it (`ok`, or the error).
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.spark import DeltaTable
from deltalakedb.spark.java import java_home


def main() -> None:
    given = json.loads(sys.argv[1])
    url, folder = given["url"], Path(given["folder"])
    os.environ["JAVA_HOME"] = str(java_home())
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )

    def attempt(name: str, work: Callable[[], Any], *expected: Any) -> None:
        try:
            found = work()
            said = "ok" if not expected or found == expected[0] else f"gave {found!r}"
        except Exception as error:  # noqa: BLE001 - it is what is asked about
            said = f"{type(error).__name__}: {error}"
        print(json.dumps({"tried": name, "became": said}), flush=True)  # noqa: T201

    lake = deltalakedb.connect(url)
    source = spark.range(6).selectExpr("id", "id % 2 as part")
    options = {"catalog": url}

    def reader(**more: Any) -> Any:
        return spark.read.format("deltalakedb").options(**options, **more).load("t")

    def writer(frame: Any, mode: str, **more: Any) -> None:
        frame.write.format("deltalakedb").options(**options, **more).mode(mode).save("t")

    def table() -> DeltaTable:
        return DeltaTable.forName(spark, "t", catalog=lake)

    def merge() -> None:
        news = spark.range(5, 8).selectExpr("id", "9L as part")
        clauses = table().alias("t").merge(news.alias("s"), "t.id = s.id")
        clauses.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def stream() -> None:
        followed = spark.readStream.format("deltalakedb").options(**options).load("t")
        query = (
            followed.writeStream.format("deltalakedb")
            .options(**options, checkpointLocation=str(folder / "checkpoint"))
            .option("location", str(folder / "copy"))
            .trigger(availableNow=True)
            .start("copy")
        )
        query.awaitTermination()

    def ids(frame: Any) -> list[int]:
        return sorted(row.id for row in frame.collect())

    attempt("write", lambda: writer(source, "append", location=str(folder / "t")))
    attempt("read", lambda: ids(reader()), [0, 1, 2, 3, 4, 5])
    attempt("replace", lambda: writer(source.where("id = 1"), "overwrite", replaceWhere="part = 1"))
    attempt("read after", lambda: ids(reader()), [0, 1, 2, 4])
    attempt("read version", lambda: ids(reader(versionAsOf=1)), [0, 1, 2, 3, 4, 5])
    attempt("append a frame", lambda: lake.table("t").append(spark.range(9, 10)))
    attempt(
        "overwrite by a frame",
        lambda: lake.table("t").overwrite(spark.range(9, 10), where="id = 9"),
    )
    attempt("toDF", lambda: ids(table().toDF()), [0, 1, 2, 4, 9])
    attempt("toDF where", lambda: ids(table().toDF(where="id > 3")), [4, 9])
    attempt("delete", lambda: table().delete("id = 9"))
    attempt("update", lambda: table().update("id = 4", {"id": "5L"}))
    attempt("merge", merge)
    attempt("optimize", lambda: table().optimize().executeCompaction())
    attempt("history", lambda: table().history(1).collect()[0].operation)
    attempt("stream", stream)
    attempt("streamed", lambda: sorted(lake.table("copy").snapshot().to_arrow()["id"].to_pylist()))
    lake.close()
    spark.stop()


if __name__ == "__main__":
    main()
