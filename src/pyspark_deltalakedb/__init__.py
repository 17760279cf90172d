"""Spark looks for data sources in modules of this name: `format("deltalakedb")` works unasked."""

from deltalakedb.spark.datasource import DeltaLakeDbSource

DefaultSource = DeltaLakeDbSource
