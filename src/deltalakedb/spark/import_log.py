"""Spark's executors parse the commit files of an import, by the functions that everybody uses.

A window of tasks is one job; the next one runs while the pieces of the last are written. Whatever
a task refuses comes back as the error that it is. Sessions of Spark Connect serve as well.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.errors import ConfigurationError, DeltaLakeDbError
from deltalakedb.storage import open_storage
from deltalakedb.transaction.parsing import Parser, Task, parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltalakedb.transaction.log_rows import Piece

_PLACES: Final = 8
"""How many tasks run at once where the session does not tell."""


def spark_parser(spark: SparkSession, location: str, options: Mapping[str, str]) -> Parser:
    """Parse tasks on the executors of a session; they have to reach `location`."""
    if not hasattr(spark, "createDataFrame"):
        raise ConfigurationError(
            f"spark={type(spark).__name__} is no Spark session",
            fix="Pass a SparkSession, or leave it out to parse in this process",
        )
    if location.startswith("memory:"):
        raise ConfigurationError(
            f"Spark cannot read {location}",
            why="It is a store of this process alone",
            fix="Leave spark out",
        )
    given = dict(options)

    def parse_all(tasks: Iterable[Task]) -> Iterator[Piece]:
        rest = iter(tasks)
        with ThreadPoolExecutor(max_workers=1) as ahead:
            running: Future[list[Piece]] | None = None
            while window := list(islice(rest, 2 * _places(spark))):
                following = ahead.submit(_run, spark, location, given, window)
                if running is not None:
                    yield from running.result()
                running = following
            if running is not None:
                yield from running.result()

    return parse_all


def _places(spark: SparkSession) -> int:
    try:
        return max(1, int(spark.sparkContext.defaultParallelism))
    except AttributeError:  # Spark Connect has no context
        return _PLACES


def _run(
    spark: SparkSession, location: str, options: dict[str, str], tasks: list[Task]
) -> list[Piece]:
    rows = [(number, pickle.dumps(task, protocol=5)) for number, task in enumerate(tasks)]
    frame = spark.createDataFrame(rows, "number long, task binary")
    spread = frame.repartitionByRange(len(rows), "number")

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        storage = open_storage(location, options)
        for batch in batches:
            for number, task in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                answer: Any
                try:
                    answer = parse(storage, pickle.loads(task))  # noqa: S301 - from our driver
                except DeltaLakeDbError as error:
                    answer = error
                data = [pickle.dumps(answer, protocol=5)]
                columns = [pa.array([number], pa.int64()), pa.array(data, pa.binary())]
                yield pa.record_batch(columns, names=["number", "answer"])

    told = spread.mapInArrow(work, "number long, answer binary").collect()
    answers = {row.number: pickle.loads(row.answer) for row in told}  # noqa: S301 - from our tasks
    found: list[Piece] = []
    for number in range(len(tasks)):
        answer = answers[number]
        if isinstance(answer, DeltaLakeDbError):
            raise answer
        found.append(answer)
    return found
