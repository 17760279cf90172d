"""The statements of a client of Spark Connect, which knows nothing of deltalakedb.

The argument is the address of the server. It prints two counts and the tables of the schema.
"""

import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr


def main() -> None:
    """Change tables in each way that Connect has."""
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()

    def run(*statements: str) -> None:
        for statement in statements:
            spark.sql(statement).collect()

    run(
        "CREATE DATABASE connect",
        "CREATE TABLE connect.t (id BIGINT, part INT, v STRING) USING delta PARTITIONED BY (part)",
        "INSERT INTO connect.t SELECT id, CAST(id % 3 AS INT), CONCAT('v', id) FROM range(9)",
        "CREATE TABLE connect.s USING delta AS "
        "SELECT id + 5 AS id, 7 AS part, 'm' AS v FROM range(6)",
        "UPDATE connect.t SET v = 'u' WHERE id = 1",
        "DELETE FROM connect.t WHERE id = 2",
    )
    target = spark.table("connect.s").alias("s")
    merge = target.mergeInto("connect.t", expr("t.id = s.id"))
    merge.whenMatched().updateAll().whenNotMatched().insertAll().merge()
    run("UPDATE connect.t SET part = 7, v = 'm' WHERE id IN (3, 4)")

    row = spark.createDataFrame([(100, 1, "w")], "id LONG, part INT, v STRING")
    row.writeTo("connect.t").append()
    row.write.saveAsTable("connect.saved")
    row.write.insertInto("connect.saved")
    row.writeTo("connect.s").createOrReplace()
    row.writeTo("connect.s").overwritePartitions()

    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.option("ignoreChanges", "true")
            .option("startingVersion", "0")
            .table("connect.saved")
            .writeStream.option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .toTable("connect.streamed")
        )
        query.awaitTermination()
    run(
        "CREATE TABLE connect.copy USING delta PARTITIONED BY (part) AS SELECT * FROM connect.t",
        "ALTER TABLE connect.t ADD COLUMNS (extra INT)",
        "OPTIMIZE connect.t",
        "RESTORE TABLE connect.t TO VERSION AS OF 6",
        "ALTER TABLE connect.copy RENAME TO connect.renamed",
        "DROP TABLE connect.s",
    )
    assert len(spark.sql("DESCRIBE HISTORY connect.t").collect()) == 10
    assert spark.table("connect.streamed").count() == 2
    run("DROP TABLE connect.streamed")
    print(spark.sql("SELECT * FROM connect.t VERSION AS OF 1").count())  # noqa: T201
    print(spark.read.option("versionAsOf", 1).table("connect.t").count())  # noqa: T201
    print(",".join(one.name for one in spark.catalog.listTables("connect")))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main()
