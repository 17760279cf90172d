"""Spark's executors read a log, to compare it with the catalog.

The functions that hash and parse are those of one process, so the result is the same. The executors
hash commit files, and reduce parts of the log to the last action on each file; a shuffle reduces
these to the last of all. The driver gets a bucket of live files at a time.
"""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions import Action, AddFile, RemoveFile
from deltalakedb.deltalog.fetch import Spool, Spooled
from deltalakedb.deltalog.history import OpenHistory
from deltalakedb.deltalog.listing import Checkpoint, HistoryPlan, LogFile, list_log
from deltalakedb.deltalog.replay import LogState, describe_add, file_id
from deltalakedb.errors import InvalidLogError, ObjectNotFoundError
from deltalakedb.mirror.log_reader import LogReader
from deltalakedb.storage import Storage, open_storage

# Commit files of a task: enough to be worth one, few enough to use all executors.
_CHUNK: Final = 500
_MOST_TASKS: Final = 200
_REMOVED: Final = b""
_FILE, _CONTROL, _ERROR = 0, 1, 2


class _Place(NamedTuple):
    """Where the log lies, for executors."""

    location: str
    options: Mapping[str, str]

    def open(self) -> Storage:
        return open_storage(self.location, self.options)


def log_reader(
    spark: SparkSession, location: str, options: Mapping[str, str]
) -> Callable[[Storage, Spool], LogReader]:
    """A function that opens a log, to be read by Spark."""
    place = _Place(location, dict(options))
    return lambda storage, spool: SparkLogReader(spark, place, storage, spool)


class SparkLogReader(LogReader):
    """Reads the files of one log by Spark jobs, and single files in this process."""

    def __init__(self, spark: SparkSession, place: _Place, storage: Storage, spool: Spool) -> None:
        super().__init__(storage, spool)
        self._spark = spark
        self._place = place
        self._digests: dict[str, Spooled] | None = None

    def fetch(self, keys: Sequence[str]) -> dict[str, Spooled]:
        """The size and digest of each file that exists; one job hashes all commits of the log."""
        if self._digests is None:
            commits = [file.key for file in list_log(self.storage).commits.values()]
            self._digests = self._hash([*dict.fromkeys([*commits, *keys])])
        others = [key for key in keys if key not in self._digests]
        here = super().fetch(others) if others else {}
        return {key: self._digests[key] for key in keys if key in self._digests} | here

    def _hash(self, keys: Sequence[str]) -> dict[str, Spooled]:
        chunks = [list(keys[start : start + _CHUNK]) for start in range(0, len(keys), _CHUNK)]
        if not chunks:
            return {}
        rows = self._run(chunks, _hasher(self._place), "key binary, size long, digest string")
        # They are not in the spool: a reader of their bytes fetches them.
        return {
            row["key"].decode(): Spooled(0, row["size"], row["digest"])
            for row in rows.toArrow().to_pylist()
        }

    def states(self, plan: HistoryPlan, buckets: int) -> Iterator[LogState]:
        """The state after a part of the log, a bucket of its files at a time."""
        columns = "kind int, bucket int, place int, key binary, value binary"
        replayed = self._run(_units(plan), _replayer(self._place, buckets), columns).cache()
        try:
            control = replayed.where(F.col("kind") != _FILE).toArrow().to_pylist()
            control.sort(key=lambda row: row["place"])
            for row in control:
                if row["kind"] == _ERROR:
                    raise _loaded(row["value"])
            newest = (
                replayed.where(F.col("kind") == _FILE)
                .groupBy("bucket", "key")
                .agg(F.max_by("value", "place").alias("value"))
                .where(F.length("value") > 0)
            )
            for bucket in range(buckets):
                state = LogState(bucket=bucket, buckets=buckets)
                for row in control:
                    state.apply(_loaded(row["value"]))
                live = newest.where(F.col("bucket") == bucket).select("key", "value").toArrow()
                for batch in live.to_batches():
                    names, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                    for name, value in zip(names, values, strict=True):
                        state.files[name.decode("utf-8", "surrogatepass")] = value
                yield state
        finally:
            replayed.unpersist()

    def _run(
        self,
        units: Sequence[object],
        work: Callable[[Iterable[Any]], Iterator[Any]],
        columns: str,
    ) -> DataFrame:
        rows = [(place, pickle.dumps(unit)) for place, unit in enumerate(units)]
        frame = self._spark.createDataFrame(rows, "place int, unit binary")
        return frame.repartition(min(len(rows), _MOST_TASKS)).mapInArrow(work, columns)


def _units(plan: HistoryPlan) -> list[tuple[object, ...]]:
    """The units of a history in order: single checkpoints, and many commits at a time."""
    units: list[tuple[object, ...]] = [(piece,) for piece in plan.base_pieces]
    commits = plan.commits
    units += [commits[start : start + _CHUNK] for start in range(0, len(commits), _CHUNK)]
    return units


# --- on the executors ---------------------------------------------------------------------


def _hasher(place: _Place) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        storage = place.open()
        for _, keys in _each(batches):
            digests: list[tuple[bytes, int, str]] = []
            for key in keys:
                try:
                    data = storage.get(key)
                except ObjectNotFoundError:
                    continue  # deleted meanwhile
                digests.append((key.encode(), len(data), hashlib.sha256(data).hexdigest()))
            types = {"key": pa.binary(), "size": pa.int64(), "digest": pa.string()}
            yield _batch(digests, types)

    return run


def _replayer(place: _Place, buckets: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def run(batches: Iterable[Any]) -> Iterator[Any]:
        types = {
            "kind": pa.int32(),
            "bucket": pa.int32(),
            "place": pa.int32(),
            "key": pa.binary(),
            "value": pa.binary(),
        }
        for number, unit in _each(batches):
            with Spool(place.open()) as spool:
                yield _batch(_reduced(number, unit, spool, buckets), types)

    return run


def _reduced(
    number: int, unit: Sequence[Checkpoint | LogFile], spool: Spool, buckets: int
) -> list[tuple[int, int, int, bytes, bytes]]:
    """The last action of a unit on each file, and its other actions; or an error."""
    files: dict[str, bytes] = {}
    others: list[Action] = []
    try:
        for actions in _actions(unit, spool):
            for action in actions:
                if isinstance(action, AddFile):
                    files[file_id(action.path, action.dv_id)] = describe_add(action)
                elif isinstance(action, RemoveFile):
                    files[file_id(action.path, action.dv_id)] = _REMOVED
                else:
                    others.append(action)
    except InvalidLogError as error:
        return [(_ERROR, 0, number, b"", pickle.dumps(error))]
    except ObjectNotFoundError as error:
        changed = InvalidLogError(
            "The log changed while it was read", why=error.what, fix="Try again"
        )
        return [(_ERROR, 0, number, b"", pickle.dumps(changed))]
    rows = [(_CONTROL, 0, number, b"", pickle.dumps(others))]
    for file, described in files.items():
        name = file.encode("utf-8", "surrogatepass")
        # The bucket of `in_bucket`.
        rows.append((_FILE, zlib.crc32(name) % buckets, number, name, described))
    return rows


def _actions(unit: Sequence[Checkpoint | LogFile], spool: Spool) -> Iterator[Iterable[Action]]:
    for piece in unit:
        if isinstance(piece, Checkpoint):
            yield from OpenHistory(
                HistoryPlan(piece.version, (piece,), None, ()), spool
            ).base_batches()
        else:
            yield OpenHistory(HistoryPlan(None, (), None, (piece,)), spool).commit(piece)


def _each(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        for row in batch.to_pylist():
            yield row["place"], _loaded(row["unit"])


def _loaded(data: bytes) -> Any:
    # From the functions of this module.
    return pickle.loads(data)  # noqa: S301


def _batch(rows: Sequence[tuple[Any, ...]], types: Mapping[str, Any]) -> Any:
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(types))
