"""Spark looks for data sources in modules of this name: `format("deltalakedb")` works unasked."""

from deltalakedb.spark.source.datasource import DeltaLakeDbSource

DefaultSource = DeltaLakeDbSource
