"""The files that Spark has read for a DataFrame."""

from typing import Any

from pyspark.sql import DataFrame


def files_read(frame: DataFrame) -> int:
    """The number of files that the scans of a DataFrame read when it was collected last."""
    execution: Any = frame._jdf.queryExecution()
    plan = execution.executedPlan()
    leaves = plan.collectLeaves()
    found = [leaves.apply(place) for place in range(leaves.size())]
    return sum(
        int(leaf.metrics().apply("numFiles").value())
        for leaf in found
        if leaf.metrics().contains("numFiles")
    )
