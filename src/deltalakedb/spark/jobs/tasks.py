"""Bulk jobs of the catalog on the executors: the log of an import, the files of an archive.

The executors call the functions that one process would call. A window of tasks is one Spark job;
the next one runs while the results of the last are used. An error that a task raises is raised in
the driver. Sessions of Spark Connect work as well.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from deltalakedb.errors import ConfigurationError, DeltaLakeDbError
from deltalakedb.importing.parsing import Parser, parse
from deltalakedb.importing.parsing import Task as LogTask
from deltalakedb.retention.archive import ArchivedFile, Part, PartWriter, write_part
from deltalakedb.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltalakedb.importing.log_rows import LogBatch

Task = TypeVar("Task")
Answer = TypeVar("Answer")
_PLACES: Final = 8
"""How many tasks run at once where the session does not tell."""


def spark_parser(spark: SparkSession, location: str, options: Mapping[str, str]) -> Parser:
    """Parse tasks on the executors of a session; they have to reach `location`."""
    _check_session(spark, location)
    given = dict(options)

    def work(task: LogTask) -> LogBatch:
        return parse(open_storage(location, given), task)

    def parse_all(tasks: Iterable[LogTask]) -> Iterator[LogBatch]:
        yield from _in_order(spark, work, tasks)

    return parse_all


def spark_parts(spark: SparkSession, location: str, options: Mapping[str, str]) -> PartWriter:
    """Write parts on the executors of a session; they and this process have to reach `location`."""
    _check_session(spark, location)
    given = dict(options)

    def work(part: Part) -> ArchivedFile:
        return write_part(open_storage(location, given), part)

    def write_all(parts: Iterable[Part]) -> Iterator[ArchivedFile]:
        # Each holds many rows: no more are in memory than run at once, and are read meanwhile.
        yield from _in_order(spark, work, parts, ahead=1)

    return write_all


def _check_session(spark: SparkSession, location: str) -> None:
    """Refuse what is no session, and a location that no executor reaches."""
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


def _in_order(
    spark: SparkSession,
    work: Callable[[Task], Answer],
    tasks: Iterable[Task],
    *,
    ahead: int = 2,
) -> Iterator[Answer]:
    """The answers of the tasks, in their order; `ahead` times as many as run at once are a job."""
    rest = iter(tasks)
    with ThreadPoolExecutor(max_workers=1) as background:
        running: Future[list[Answer]] | None = None
        while window := list(islice(rest, ahead * _places(spark))):
            following = background.submit(_run, spark, work, window)
            if running is not None:
                yield from running.result()
            running = following
        if running is not None:
            yield from running.result()


def _places(spark: SparkSession) -> int:
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except AttributeError:  # Spark Connect has no context
        return _PLACES


def _run(spark: SparkSession, work: Callable[[Task], Answer], tasks: list[Task]) -> list[Answer]:
    rows = [(number, pickle.dumps(task, protocol=5)) for number, task in enumerate(tasks)]
    frame = spark.createDataFrame(rows, "number long, task binary")
    spread = frame.repartitionByRange(len(rows), "number")

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number, task in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                answer: Any
                try:
                    answer = work(pickle.loads(task))  # noqa: S301 - from our driver
                except DeltaLakeDbError as error:
                    answer = error
                data = [pickle.dumps(answer, protocol=5)]
                columns = [pa.array([number], pa.int64()), pa.array(data, pa.binary())]
                yield pa.record_batch(columns, names=["number", "answer"])

    rows_back = spread.mapInArrow(run, "number long, answer binary").collect()
    answers = {row.number: pickle.loads(row.answer) for row in rows_back}  # noqa: S301 - from our tasks
    found: list[Answer] = []
    for number in range(len(tasks)):
        answer = answers[number]
        if isinstance(answer, DeltaLakeDbError):
            raise answer
        found.append(answer)
    return found
