"""The daemon that forks Spark's Python workers, with their libraries imported once, before.

Spark's own imports nothing, so that every worker spends half a second and more on pyarrow, pandas
and deltalakedb: for each plan, each batch of a stream and each commit of a data source.
"""

import importlib
from contextlib import suppress

from pyspark.daemon import manager

_MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.sql.datasource",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "deltalakedb.spark.source.datasource",
    "deltalakedb.staging",
)

if __name__ == "__main__":
    for name in _MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    manager()
