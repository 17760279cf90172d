"""A program with `configure`, and one session that is attached to two lakes (test_session.py)."""

# ruff: noqa: T201 - what it prints is the result

import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import deltalakedb
from deltalakedb.errors import ConfigurationError
from deltalakedb.spark import attach, configure

folder, jars = sys.argv[1:]


def lake_in(name: str) -> deltalakedb.Lake:
    """A lake with a warehouse of its own."""
    return deltalakedb.connect(f"sqlite:///{folder}/{name}.db", warehouse=f"{folder}/{name}")


one, two = lake_in("one"), lake_in("two")
builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.databricks.delta.snapshotPartitions", "1")
)
spark = configure(builder, one).getOrCreate()
spark.range(3).write.format("delta").saveAsTable("numbers")
spark.range(3).write.insertInto("numbers")
spark.range(4).writeTo("numbers").append()
print("one", one.table("numbers").snapshot().to_arrow().num_rows, spark.table("numbers").count())
print("token", spark.sql("SET deltalakedb.token").collect()[0]["value"] == "x")

spark.udf.register("python", lambda: sys.executable)
print("python", spark.sql("SELECT python()").collect()[0][0] == sys.executable)

two.create_table("sales.orders", schema=pa.schema([("id", pa.int64())]))
attach(spark, two)
spark.sql("INSERT INTO sales.orders VALUES (1)")
spark.sql("CREATE TABLE fresh USING delta AS SELECT 1 AS a")
print("two", sorted(table.name for table in two.tables()), two.table("sales.orders").version)
print("gone", spark.catalog.tableExists("numbers"))
jvm: Any = spark._jvm
java = jvm.io.delta.tables.DeltaTable  # Delta's own package may be missing
java.forName(spark._jsparkSession, "sales.orders").delete("id = 1")
print("forName", two.table("sales.orders").snapshot().to_arrow().num_rows)
spark.newSession().sql("INSERT INTO numbers VALUES (9)")
print("other session", one.table("numbers").version, one.verify("numbers").ok)
spark.stop()

plain = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
plain.conf.unset("spark.sql.catalog.spark_catalog")
try:
    attach(plain, one)
except ConfigurationError as error:
    print("refused", "deltalakedb.spark.configure" in str(error))
plain.stop()
