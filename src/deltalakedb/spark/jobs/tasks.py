"""Work of the catalog on the executors: parsing a log, writing an archive, compacting files.

The executors call the functions that one process would call. A window of tasks is one Spark job;
the next one runs while the results of the last are used. An error that a task raises is raised in
the driver. Sessions of Spark Connect work as well.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from deltalakedb.errors import ConfigurationError, DeltaLakeDbError
from deltalakedb.importing.log_rows import LogBatch
from deltalakedb.importing.parsing import Parser, parse
from deltalakedb.importing.parsing import Task as LogTask
from deltalakedb.retention.archive import ArchivedFile, Part, PartWriter, write_part
from deltalakedb.storage import open_storage

Task = TypeVar("Task")
Result = TypeVar("Result")
_PLACES: Final = 8
"""The number of tasks that run at once, where the session has no context to ask."""


def spark_parser(spark: SparkSession, location: str, options: Mapping[str, str]) -> Parser:
    """Return a parser of log files that runs on the executors; they have to reach `location`."""
    _check_session(spark, location)
    stored = dict(options)

    def work(task: LogTask) -> LogBatch:
        return parse(open_storage(location, stored), task)

    return lambda tasks: _in_windows(spark, work, tasks)


def spark_parts(spark: SparkSession, location: str, options: Mapping[str, str]) -> PartWriter:
    """Return a writer of archives that runs on the executors; they have to reach `location`."""
    _check_session(spark, location)
    stored = dict(options)

    def work(part: Part) -> ArchivedFile:
        return write_part(open_storage(location, stored), part)

    # A part holds many rows: the driver has no more in memory than run, and as many to read.
    return lambda parts: _in_windows(spark, work, parts, rounds=1)


def _check_session(spark: SparkSession, location: str) -> None:
    """Refuse an object that is no session, and a location that no executor reaches."""
    if not hasattr(spark, "createDataFrame"):
        raise ConfigurationError(
            f"spark={type(spark).__name__} is no Spark session",
            fix="Pass a SparkSession, or leave it out to do it in this process",
        )
    if location.startswith("memory:"):
        raise ConfigurationError(
            f"Spark cannot reach {location}",
            why="It is a store of this process alone",
            fix="Leave spark out",
        )


def _in_windows(
    spark: SparkSession,
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    rounds: int = 2,
) -> Iterator[Result]:
    """Yield the results in the order of the tasks; a job has `rounds` tasks for each core."""
    rest = iter(tasks)
    with ThreadPoolExecutor(max_workers=1) as background:
        running: Future[list[bytes]] | None = None
        while window := list(islice(rest, rounds * _places(spark))):
            following = background.submit(_collect, spark, work, window)
            if running is not None:
                yield from _loaded(running.result())
            running = following
        if running is not None:
            yield from _loaded(running.result())


def run_tasks(
    spark: SparkSession, work: Callable[[Task], Result], tasks: Sequence[Task]
) -> Iterator[Result]:
    """Run all tasks as one job; yield the results in order, up to the first error."""
    yield from _loaded(_collect(spark, work, tasks))


def _places(spark: SparkSession) -> int:
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except AttributeError:  # Spark Connect has no context
        return _PLACES


def _collect(
    spark: SparkSession, work: Callable[[Task], Result], tasks: Sequence[Task]
) -> list[bytes]:
    rows = [(number, pickle.dumps(task, protocol=5)) for number, task in enumerate(tasks)]
    frame = spark.createDataFrame(rows, "number long, task binary")

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number, task in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                result: Any
                try:
                    result = work(pickle.loads(task))  # noqa: S301 - from our driver
                except DeltaLakeDbError as error:
                    result = error
                data = [pickle.dumps(result, protocol=5)]
                columns = [pa.array([number], pa.int64()), pa.array(data, pa.binary())]
                yield pa.record_batch(columns, names=["number", "result"])

    # One task each, in their order.
    spread = frame.repartitionByRange(len(rows), "number")
    results = spread.mapInArrow(run, "number long, result binary").collect()
    return [row.result for row in sorted(results, key=lambda row: int(row.number))]


def _loaded(results: Iterable[bytes]) -> Iterator[Any]:
    for data in results:
        result = pickle.loads(data)  # noqa: S301 - from our tasks
        if isinstance(result, DeltaLakeDbError):
            raise result
        yield result
