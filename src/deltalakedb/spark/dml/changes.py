"""A change of rows of a table by Spark: new files and deletion vectors, committed as one version.

The table property `delta.enableDeletionVectors` chooses how rows of a file are changed:

- copy on write: the file is removed, and its other rows are written to new files;
- deletion vectors: the rows are marked as deleted in the file, and only their new form is written.

Nothing is visible before the commit. The conflict rules get the files and partitions that were
read: a concurrent change of these files, or new rows in these partitions, makes the commit fail,
and the staged files are deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions import Action, AddFile, CdcFile, RemoveFile
from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.values import CHANGE_TYPE
from deltalakedb.conditions.predicate import Predicate
from deltalakedb.errors import DataFileError, UnsupportedFeatureError
from deltalakedb.operations.append import (
    add_of,
    check_generated,
    live_rows,
    records_known,
    remove_of,
    rows_of_files,
    stage_plan,
    staged_keys,
)
from deltalakedb.reading.data_files import DataFile, deleted_rows
from deltalakedb.reading.dataset import layout_of
from deltalakedb.reading.deletion_vectors import encode_rows, parse_bitmap, write_vectors
from deltalakedb.snapshot import Snapshot
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.spark.io.generated import RECOMPUTE, generated_columns, recomputed
from deltalakedb.spark.io.paths import hadoop_uri, metadata_path
from deltalakedb.spark.io.scan import FILE, ROW, quoted, scan_files
from deltalakedb.spark.io.stage import stage_changes, stage_frame_checked
from deltalakedb.staging.fit import ENFORCED
from deltalakedb.staging.stage import Sinks
from deltalakedb.store.arrow import schema_of
from deltalakedb.table import Table
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Commit, Committed, Guarantees, Operation, state_of

_OUTCOME: Final = "__deltalakedb_outcome"
_SHARED: Final = "__deltalakedb_shared"


@dataclass(frozen=True, slots=True)
class Emitted:
    """The results for rows for which `when` is true: rows (None), and change data by its type."""

    when: Column
    rows: Sequence[tuple[Sequence[Column], str | None]]


@dataclass(slots=True)
class Touched:
    """The files with rows that change, and the number of these rows by path."""

    files: pa.Table
    rows: list[dict[str, Any]]
    counts: dict[str, int]

    @property
    def changed(self) -> int:
        """The number of rows that change."""
        return sum(self.counts.values())


class RowEdit:
    """A change of rows of a snapshot: the files that it removes, marks and stages."""

    def __init__(self, spark: SparkSession, snapshot: Snapshot, now: int) -> None:
        self.spark = spark
        self.snapshot = snapshot
        self.metadata = self.snapshot.metadata
        properties = TableProperties(self.snapshot.properties)
        self.with_vectors = properties.enable_deletion_vectors
        self.change_data = properties.enable_change_data_feed
        self._row_tracking = properties.enable_row_tracking
        self._location = self.snapshot.table.location
        self._now = now
        self._began = time.monotonic()
        self.removes: list[RemoveFile] = []
        self.adds: list[AddFile] = []
        self.marked: list[AddFile] = []
        """Files that stay, with more deleted rows."""
        self.changes: list[CdcFile] = []
        self.staged: list[str] = []
        """The keys of new files; `undo_on_error` deletes them."""

    @contextmanager
    def undo_on_error(self) -> Iterator[None]:
        """Delete the staged files if the block fails; vacuum deletes those that remain."""
        try:
            yield
        except BaseException:
            Sinks(self._location, self.snapshot.storage_options).delete(self.staged)
            raise

    # --- the rows that change --------------------------------------------------------------

    def find(self, predicate: Predicate | None) -> pa.Table:
        """The files that can have rows for a condition."""
        return self.snapshot.files(where=predicate, columns=COLUMNS)

    def rows(self, files: pa.Table, *, metadata: bool = False) -> DataFrame:
        """The rows of files, with FILE and ROW; with `metadata` also Spark's hidden columns."""
        return scan_files(self.spark, self.snapshot, files, with_position=True, metadata=metadata)

    @cached_property
    def empty(self) -> DataFrame:
        """No rows, with the columns of the table, to resolve expressions."""
        return scan_files(self.spark, self.snapshot, schema_of(COLUMNS).empty_table())

    def touched(self, files: pa.Table, counts: Mapping[str, int]) -> Touched:
        """The files with rows that change; `counts` has their number by Spark's name of a file."""
        rows = rows_of_files(files)
        names = [self._spark_name(row) for row in rows]
        unknown = counts.keys() - set(names)
        if unknown:
            # Otherwise rows that have to change would stay.
            raise DataFileError(
                f"Spark has read a file of table {self.snapshot.table.name!r} by a name that the "
                f"table does not have: {min(unknown)}",
                fix="Nothing was changed; please report this, with the name of the file",
            )
        named = [counts.get(name, 0) for name in names]
        chosen = [i for i, count in enumerate(named) if count]
        return Touched(
            files.take(pa.array(chosen, pa.int64())),
            [rows[i] for i in chosen],
            {rows[i]["path"]: named[i] for i in chosen},
        )

    def _spark_name(self, row: Mapping[str, Any]) -> str:
        return metadata_path(hadoop_uri(self._location, row["path"]))

    # --- changing --------------------------------------------------------------------------

    def remove(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Remove files."""
        self.removes += [remove_of(row, self._now) for row in rows]

    def write_all(self, parts: Sequence[tuple[DataFrame, Sequence[Emitted]]]) -> None:
        """Write the results for the rows of frames, in one job."""
        if self._row_tracking and not self.with_vectors:
            raise UnsupportedFeatureError(
                f"Rows of table {self.snapshot.table.name!r} cannot be rewritten",
                why="It tracks rows, and rows that move to another file would lose their ids",
                fix="Switch deletion vectors on (delta.enableDeletionVectors), or row tracking off",
            )
        check_generated(self.snapshot.table, self.metadata, generates=True)
        plan = stage_plan(
            self.snapshot.table, self.metadata, self.snapshot.storage_options, target_bytes=None
        )
        names = [column.name for column in self.metadata.schema.fields]
        generated = generated_columns(self.metadata.schema)
        if generated:
            names.append(RECOMPUTE)
        emitted = reduce(
            lambda above, below: above.unionAll(below),
            [emit(frame, results, names, with_type=self.change_data) for frame, results in parts],
        )
        if generated:
            emitted = recomputed(emitted, self.metadata.schema)
        if self.metadata.partition_columns:
            # Otherwise every task would write a file for each partition.
            by = [quoted(name) for name in self.metadata.partition_columns]
            emitted = emitted.hint("rebalance", *by)
        if self.change_data:
            adds, changes = stage_changes(emitted, plan)
        else:
            adds, changes = stage_frame_checked(emitted, plan), []
        self.adds += adds
        self.changes += changes
        self.staged += staged_keys([*adds, *changes])

    def mark(self, touched: Touched, numbers: Mapping[str, Any]) -> None:
        """Mark rows as deleted (see `positions`); remove files that have no other rows."""
        layout = layout_of(self.snapshot)
        vectors: dict[str, Any] = {}
        again = []
        for row in touched.rows:
            deleted = numbers[self._spark_name(row)]
            if row["deletion_vector"] is not None:
                file = DataFile(row["path"], row["partition_values"], row["deletion_vector"])
                before = deleted_rows(layout, file)
                if before is not None:
                    deleted = pa.concat_arrays([before.numbers(), deleted])
            deleted = pc.unique(deleted).sort()
            self.removes.append(remove_of(row, self._now))
            if len(deleted) < _records(row):
                vectors[row["path"]] = deleted
                again.append(row)
        if not again:
            return
        sinks = Sinks(self._location, self.snapshot.storage_options)
        descriptors, key = write_vectors(sinks, vectors)
        self.staged.append(key)
        for row in again:
            stats = {**loads(row["stats"]), "tightBounds": False}
            self.marked.append(
                replace(add_of(row), deletion_vector=descriptors[row["path"]], stats=dumps(stats))
            )

    def whole(self, files: pa.Table) -> Touched | None:
        """All rows of files; None if their number is not known."""
        rows = rows_of_files(files)
        counts = {row["path"]: live_rows(row) for row in rows}
        known = {path: count for path, count in counts.items() if count is not None}
        return Touched(files, rows, known) if len(known) == len(rows) else None

    def positions(self, rows: DataFrame) -> dict[str, Any]:
        """The numbers of rows of a frame with FILE and ROW, by Spark's name of the file."""
        numbers: dict[str, list[Any]] = {}
        bitmaps = rows.select(FILE, ROW).mapInArrow(_bitmaps, "file string, rows binary")
        for one in bitmaps.collect():
            numbers.setdefault(one.file, []).append(parse_bitmap(bytes(one.rows)).numbers())
        return {name: pa.concat_arrays(parts) for name, parts in numbers.items()}

    def _vector_metrics(self) -> dict[str, str]:
        if not self.with_vectors:
            return {}
        before = [remove.path for remove in self.removes if remove.deletion_vector is not None]
        marked = {add.path for add in self.marked}
        return {
            "numDeletionVectorsAdded": str(len(marked)),
            "numDeletionVectorsRemoved": str(len(before)),
            "numDeletionVectorsUpdated": str(sum(path in marked for path in before)),
        }


class RowChange(RowEdit):
    """The same for the newest version of a table, committed as one version.

    The commit starts from the snapshot of the change: later commits are checked for conflicts, also
    those that the handle has seen.
    """

    def __init__(self, spark: SparkSession, table: Table) -> None:
        super().__init__(spark, table.snapshot(), table.now_ms())
        self.table = table
        self.base = state_of(self.snapshot)
        self.control: tuple[Action, ...] = ()
        """Changes of the metadata and the protocol."""

    def commit(
        self,
        operation: str,
        *,
        parameters: Mapping[str, Any],
        metrics: Mapping[str, Any],
        read: ReadSet,
    ) -> Committed | None:
        """Commit; None if nothing changes."""
        actions = (*self.control, *self.removes, *self.marked, *self.adds, *self.changes)
        if not actions:
            return None
        took = str(round((time.monotonic() - self._began) * 1000))
        removed = {remove.path for remove in self.removes} - {add.path for add in self.marked}
        all_metrics = {
            "numRemovedFiles": str(len(removed)),
            "numRemovedBytes": str(sum(r.size or 0 for r in self.removes if r.path in removed)),
            "numAddedFiles": str(len(self.adds)),
            "numAddedBytes": str(sum(add.size for add in self.adds)),
            "numAddedChangeFiles": str(len(self.changes)),
            **self._vector_metrics(),
            **{name: str(value) for name, value in metrics.items()},
            "executionTimeMs": took,
        }
        return self.table.submit(
            Commit(
                self.snapshot.table,
                self.base,
                actions,
                Operation(operation, parameters, all_metrics),
                read,
                Guarantees(ENFORCED | {"generatedColumns"}),
                staged=tuple(self.staged),
            )
        )


def emit(
    frame: DataFrame, outcomes: Sequence[Emitted], names: Sequence[str], *, with_type: bool
) -> DataFrame:
    """The results for each row: those of the first outcome whose `when` is true, or none."""
    if not with_type:
        return _emit_one(frame, outcomes, names)
    number = F.lit(None).cast("int")
    for i, outcome in reversed(list(enumerate(outcomes))):
        number = F.when(outcome.when, F.lit(i)).otherwise(number)
    # Values of a row and of its change data are computed once: both have the same uuid().
    shared: Column = F.lit(None)
    chosen: Column = F.lit(None)
    known = [F.col(_SHARED).getField(name) for name in names]
    for i, outcome in enumerate(outcomes):
        twice = _shared_values(outcome)
        if twice is not None:
            shared = F.when(F.col(_OUTCOME) == i, _row(twice, names)).otherwise(shared)
        if outcome.rows:
            rows = [
                _row(known if values is twice else values, names, F.lit(kind).cast("string"))
                for values, kind in outcome.rows
            ]
            chosen = F.when(F.col(_OUTCOME) == i, F.array(*rows)).otherwise(chosen)
    numbered = frame.withColumn(_OUTCOME, number).withColumn(_SHARED, shared)
    return numbered.select(F.inline(chosen))


def _shared_values(outcome: Emitted) -> Sequence[Column] | None:
    """The values of an outcome that are both a row and change data."""
    for i, (values, _) in enumerate(outcome.rows):
        if any(values is others for others, _ in outcome.rows[i + 1 :]):
            return values
    return None


def _row(values: Sequence[Column], names: Sequence[str], kind: Column | None = None) -> Column:
    change_type = [] if kind is None else [kind.alias(CHANGE_TYPE)]
    padded = zip(_padded(values, names), names, strict=True)
    return F.struct(*(value.alias(name) for value, name in padded), *change_type)


def _emit_one(frame: DataFrame, outcomes: Sequence[Emitted], names: Sequence[str]) -> DataFrame:
    """The rows without change data: one or none for each row, which needs no arrays."""
    stays: Column | None = None
    for outcome in outcomes:
        value = F.lit(bool(outcome.rows))
        stays = F.when(outcome.when, value) if stays is None else stays.when(outcome.when, value)
    assert stays is not None  # noqa: S101
    live = [
        (outcome.when, _padded(outcome.rows[0][0], names)) for outcome in outcomes if outcome.rows
    ]
    # Each row that stays has one of these outcomes, so the last one needs no condition.
    conditional, (_, rest) = live[:-1], live[-1]
    columns = []
    for i, name in enumerate(names):
        value = rest[i]
        for when, values in reversed(conditional):
            value = F.when(when, values[i]).otherwise(value)
        columns.append(value.alias(name))
    return frame.where(F.coalesce(stays, F.lit(False))).select(*columns)  # noqa: FBT003


def _padded(values: Sequence[Column], names: Sequence[str]) -> Sequence[Column]:
    """Values without the column RECOMPUTE get it: no generated column is computed again."""
    if len(values) == len(names):
        return values
    return [*values, F.lit(None).cast("array<string>")]


def columns_named(names: Iterable[str]) -> list[Column]:
    """Columns by their exact names."""
    return [F.col(quoted(name)) for name in names]


def has_counts(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the numbers of rows of all files are known, as deletion vectors require."""
    return all(records_known(row) is not None for row in rows)


def written_rows(adds: Iterable[AddFile]) -> int:
    """The number of rows in new files."""
    return sum(json.loads(add.stats)["numRecords"] for add in adds if add.stats)


def _records(row: Mapping[str, Any]) -> int:
    known = records_known(row)
    assert known is not None  # noqa: S101 - see has_counts
    return known


def _bitmaps(batches: Iterable[Any]) -> Iterator[Any]:
    """The rows of each file in all batches of a task, as one bitmap."""
    numbers: dict[str, list[Any]] = {}
    for batch in batches:
        files = batch.column(0).dictionary_encode()
        for i, name in enumerate(files.dictionary.to_pylist()):
            mask = pc.equal(files.indices, i)
            numbers.setdefault(name, []).append(batch.column(1).filter(mask))
    names = list(numbers)
    encoded = [
        encode_rows(pc.unique(pa.concat_arrays(numbers[name])).sort().cast(pa.int64()))
        for name in names
    ]
    yield pa.RecordBatch.from_arrays(
        [pa.array(names, pa.string()), pa.array(encoded, pa.binary())], ["file", "rows"]
    )
