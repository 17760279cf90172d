"""Rows of a table are changed: found by Spark, written anew, committed as one version.

Two ways to change rows of a file, by the table property `delta.enableDeletionVectors`:

- copy on write: the file is removed, and all its rows that stay are written to new ones;
- deletion vectors: the rows that change are marked as deleted in the file, which stays; only their
  new form is written.

Nothing of it is visible before the commit. What was read goes to the conflict rules: whoever
changed the same files, or added rows that should have been looked at, makes the commit fail, and
what was written is deleted again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import Action, AddFile, CdcFile, RemoveFile
from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.actions.partition import decode_path
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
)
from deltalakedb.reading.data_files import DataFile, deleted_rows
from deltalakedb.reading.dataset import layout_of
from deltalakedb.reading.deletion_vectors import encode_rows, parse_bitmap, write_vectors
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.spark.dml.generated import ANEW, generated_columns, made_anew
from deltalakedb.spark.io.paths import hadoop_uri, metadata_path
from deltalakedb.spark.io.scan import FILE, ROW, quoted, scan_files
from deltalakedb.spark.io.stage import stage_changes, stage_frame_checked
from deltalakedb.staging.fit import ENFORCED
from deltalakedb.staging.stage import Sinks
from deltalakedb.store.arrow import schema_of
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Commit, Guarantees, Operation, state_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from deltalakedb.snapshot import Snapshot
    from deltalakedb.table import Table
    from deltalakedb.transaction.commit import Committed


_OUTCOME: Final = "__deltalakedb_outcome"
_MADE: Final = "__deltalakedb_made"


@dataclass(frozen=True, slots=True)
class Emitted:
    """What becomes of the rows for which `when` is true: rows, and change data by its type."""

    when: Column
    rows: Sequence[tuple[Sequence[Column], str | None]]


@dataclass(slots=True)
class Touched:
    """The files that a change concerns, and how many of their rows."""

    files: pa.Table
    rows: list[dict[str, Any]]
    counts: dict[str, int]

    @property
    def changed(self) -> int:
        """How many rows are changed."""
        return sum(self.counts.values())


@dataclass(slots=True)
class Parts:
    """What a commit is made of; staged files are deleted by `undo`."""

    removes: list[RemoveFile] = field(default_factory=list)
    adds: list[AddFile] = field(default_factory=list)
    marked: list[AddFile] = field(default_factory=list)
    changes: list[CdcFile] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    control: tuple[Action, ...] = ()

    @property
    def actions(self) -> tuple[Action, ...]:
        """All of it, in the order of Delta's log."""
        return (*self.control, *self.removes, *self.marked, *self.adds, *self.changes)


class RowEdit:
    """A change of the rows of a snapshot: what its files become."""

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
        self.parts = Parts()
        self._empty: DataFrame | None = None

    # --- finding ---------------------------------------------------------------------------

    def find(self, predicate: Predicate | None) -> pa.Table:
        """The files that may have rows for a condition."""
        return self.snapshot.files(where=predicate, columns=COLUMNS)

    def rows(self, files: pa.Table, *, metadata: bool = False) -> DataFrame:
        """The rows of files, with FILE and ROW; with `metadata` also Spark's hidden columns."""
        return scan_files(self.spark, self.snapshot, files, with_position=True, metadata=metadata)

    @property
    def empty(self) -> DataFrame:
        """No rows, with the columns of the table: for whatever has to be resolved with them."""
        if self._empty is None:
            none = schema_of(COLUMNS).empty_table()
            self._empty = scan_files(self.spark, self.snapshot, none)
        return self._empty

    def touched(self, files: pa.Table, counts: Mapping[str, int]) -> Touched:
        """Those of the files that have rows which change, by Spark's name of each."""
        import pyarrow as pa

        rows = rows_of_files(files)
        names = [self._spark_name(row) for row in rows]
        unknown = counts.keys() - set(names)
        if unknown:
            # To go on would leave rows as they are that have to change.
            raise DataFileError(
                f"Spark has read a file of table {self.snapshot.table.name!r} by another name than "
                f"the table has for it: {min(unknown)}",
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
        self.parts.removes += [remove_of(row, self._now) for row in rows]

    def write(self, frame: DataFrame, outcomes: Sequence[Emitted]) -> None:
        """Write what becomes of the rows of a frame."""
        self.write_all([(frame, outcomes)])

    def write_all(self, parts: Sequence[tuple[DataFrame, Sequence[Emitted]]]) -> None:
        """Write what becomes of the rows of several frames, in one job."""
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
            names.append(ANEW)
        emitted = reduce(
            lambda above, below: above.unionAll(below),
            [emit(frame, made, names, with_type=self.change_data) for frame, made in parts],
        )
        if generated:
            emitted = made_anew(emitted, self.metadata.schema)
        if self.metadata.partition_columns:
            # Otherwise every task would write a file of its own for each partition.
            by = [quoted(name) for name in self.metadata.partition_columns]
            emitted = emitted.hint("rebalance", *by)
        if self.change_data:
            adds, changes = stage_changes(emitted, plan)
        else:
            adds, changes = stage_frame_checked(emitted, plan), []
        self.parts.adds += adds
        self.parts.changes += changes
        self.parts.keys += [decode_path(add.path) for add in adds]
        self.parts.keys += [decode_path(made.path) for made in changes]

    def mark(self, touched: Touched, numbers: Mapping[str, Any]) -> None:
        """Mark rows as deleted (see `positions`); files that have none left are removed."""
        import pyarrow as pa
        import pyarrow.compute as pc

        layout = layout_of(self.snapshot)
        vectors: dict[str, Any] = {}
        again = []
        for row in touched.rows:
            gone = numbers[self._spark_name(row)]
            if row["deletion_vector"] is not None:
                file = DataFile(row["path"], row["partition_values"], row["deletion_vector"])
                before = deleted_rows(layout, file)
                if before is not None:
                    gone = pa.concat_arrays([before.numbers(), gone])
            gone = pc.unique(gone).sort()
            self.parts.removes.append(remove_of(row, self._now))
            if len(gone) < _records(row):
                vectors[row["path"]] = gone
                again.append(row)
        if not again:
            return
        sinks = Sinks(self._location, self.snapshot.storage_options)
        descriptors, key = write_vectors(sinks, vectors)
        self.parts.keys.append(key)
        for row in again:
            stats = {**loads(row["stats"]), "tightBounds": False}
            self.parts.marked.append(
                replace(add_of(row), deletion_vector=descriptors[row["path"]], stats=dumps(stats))
            )

    def whole(self, files: pa.Table) -> Touched | None:
        """All rows of files; None where it is not known how many they are."""
        rows = rows_of_files(files)
        counts = {row["path"]: live_rows(row) for row in rows}
        known = {path: count for path, count in counts.items() if count is not None}
        return Touched(files, rows, known) if len(known) == len(rows) else None

    def positions(self, rows: DataFrame) -> dict[str, Any]:
        """The numbers of rows of a frame with FILE and ROW, by Spark's name of the file."""
        import pyarrow as pa

        found: dict[str, list[Any]] = {}
        for one in (
            rows.select(FILE, ROW).mapInArrow(_bitmaps, "file string, rows binary").collect()
        ):
            found.setdefault(one.file, []).append(parse_bitmap(bytes(one.rows)).numbers())
        return {name: pa.concat_arrays(parts) for name, parts in found.items()}

    def undo(self) -> None:
        """Delete what was written; what cannot be deleted is left to vacuum."""
        Sinks(self._location, self.snapshot.storage_options).delete(self.parts.keys)

    def _vector_metrics(self) -> dict[str, str]:
        if not self.with_vectors:
            return {}
        before = sum(remove.deletion_vector is not None for remove in self.parts.removes)
        marked = {add.path for add in self.parts.marked}
        updated = sum(
            remove.deletion_vector is not None and remove.path in marked
            for remove in self.parts.removes
        )
        return {
            "numDeletionVectorsAdded": str(len(marked)),
            "numDeletionVectorsRemoved": str(before),
            "numDeletionVectorsUpdated": str(updated),
        }


class RowChange(RowEdit):
    """The same for a table as it is now, committed as one version.

    The commit starts from the snapshot that the change began with: what others have committed
    since is checked, whatever the handle has seen of it.
    """

    def __init__(self, spark: SparkSession, table: Table) -> None:
        super().__init__(spark, table.snapshot(), table.now_ms())
        self.table = table
        self.base = state_of(self.snapshot)

    def commit(
        self,
        operation: str,
        *,
        parameters: Mapping[str, Any],
        metrics: Mapping[str, Any],
        read: ReadSet,
    ) -> Committed | None:
        """Commit, or nothing where nothing changes."""
        parts = self.parts
        if not parts.actions:
            return None
        took = str(round((time.monotonic() - self._began) * 1000))
        removed = {remove.path for remove in parts.removes} - {add.path for add in parts.marked}
        told = {
            "numRemovedFiles": str(len(removed)),
            "numRemovedBytes": str(sum(r.size or 0 for r in parts.removes if r.path in removed)),
            "numAddedFiles": str(len(parts.adds)),
            "numAddedBytes": str(sum(add.size for add in parts.adds)),
            "numAddedChangeFiles": str(len(parts.changes)),
            **self._vector_metrics(),
            **{name: str(value) for name, value in metrics.items()},
            "executionTimeMs": took,
        }
        return self.table.submit(
            Commit(
                self.snapshot.table,
                self.base,
                parts.actions,
                Operation(operation, parameters, told),
                read,
                Guarantees(ENFORCED | {"generatedColumns"}),
                staged=tuple(parts.keys),
            )
        )


def emit(
    frame: DataFrame, outcomes: Sequence[Emitted], names: Sequence[str], *, with_type: bool
) -> DataFrame:
    """What becomes of each row: that of the first outcome whose `when` is true; or nothing."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not with_type:
        return _emit_one(frame, outcomes, names)
    number = F.lit(None).cast("int")
    for i, outcome in reversed(list(enumerate(outcomes))):
        number = F.when(outcome.when, F.lit(i)).otherwise(number)
    # Values that are told twice are made once: a row and its change data have the same uuid().
    made: Column = F.lit(None)
    for i, outcome in enumerate(outcomes):
        twice = _told_twice(outcome)
        if twice is not None:
            made = F.when(F.col(_OUTCOME) == i, _row(twice, names)).otherwise(made)
    chosen: Column = F.lit(None)
    for i, outcome in enumerate(outcomes):
        if outcome.rows:
            twice = _told_twice(outcome)
            known = [F.col(_MADE).getField(name) for name in names]
            rows = [
                _row(known if values is twice else values, names, F.lit(kind).cast("string"))
                for values, kind in outcome.rows
            ]
            chosen = F.when(F.col(_OUTCOME) == i, F.array(*rows)).otherwise(chosen)
    numbered = frame.withColumn(_OUTCOME, number).withColumn(_MADE, made)
    return numbered.select(F.inline(chosen))


def _told_twice(outcome: Emitted) -> Sequence[Column] | None:
    """The values of an outcome that are a row and change data."""
    for i, (values, _) in enumerate(outcome.rows):
        if any(values is others for others, _ in outcome.rows[i + 1 :]):
            return values
    return None


def _row(values: Sequence[Column], names: Sequence[str], kind: Column | None = None) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    change_type = [] if kind is None else [kind.alias(CHANGE_TYPE)]
    padded = zip(_padded(values, names), names, strict=True)
    return F.struct(*(value.alias(name) for value, name in padded), *change_type)


def _emit_one(frame: DataFrame, outcomes: Sequence[Emitted], names: Sequence[str]) -> DataFrame:
    """No change data: each row becomes one row or none, which needs no arrays."""
    from pyspark.sql import functions as F  # noqa: N812

    kept: Column | None = None
    for outcome in outcomes:
        stays = F.lit(bool(outcome.rows))
        kept = F.when(outcome.when, stays) if kept is None else kept.when(outcome.when, stays)
    assert kept is not None  # noqa: S101
    live = [
        (outcome.when, _padded(outcome.rows[0][0], names)) for outcome in outcomes if outcome.rows
    ]
    # Rows that are kept have one of these outcomes, so the last one needs no question.
    asked, (_, rest) = live[:-1], live[-1]
    made = []
    for i, name in enumerate(names):
        value = rest[i]
        for when, values in reversed(asked):
            value = F.when(when, values[i]).otherwise(value)
        made.append(value.alias(name))
    return frame.where(F.coalesce(kept, F.lit(False))).select(*made)  # noqa: FBT003


def _padded(values: Sequence[Column], names: Sequence[str]) -> Sequence[Column]:
    """Values that say nothing of generated columns keep theirs."""
    if len(values) == len(names):
        return values
    from pyspark.sql import functions as F  # noqa: N812

    return [*values, F.lit(None).cast("array<string>")]


def columns_named(names: Iterable[str]) -> list[Column]:
    """Columns by their exact names."""
    from pyspark.sql import functions as F  # noqa: N812

    return [F.col(quoted(name)) for name in names]


def has_counts(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all files say how many rows they have, as files with deletion vectors must."""
    return all(records_known(row) is not None for row in rows)


def written_rows(adds: Iterable[AddFile]) -> int:
    """How many rows new files have."""
    return sum(json.loads(add.stats)["numRecords"] for add in adds if add.stats)


def _records(row: Mapping[str, Any]) -> int:
    known = records_known(row)
    assert known is not None  # noqa: S101 - see has_counts
    return known


def _bitmaps(batches: Iterable[Any]) -> Iterator[Any]:
    """Rows of each file as one bitmap, sent when all of a task's batches are there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[str, list[Any]] = {}
    for batch in batches:
        files = batch.column(0).dictionary_encode()
        for i, name in enumerate(files.dictionary.to_pylist()):
            mask = pc.equal(files.indices, i)
            found.setdefault(name, []).append(batch.column(1).filter(mask))
    names = list(found)
    encoded = [
        encode_rows(pc.unique(pa.concat_arrays(found[name])).sort().cast(pa.int64()))
        for name in names
    ]
    yield pa.RecordBatch.from_arrays(
        [pa.array(names, pa.string()), pa.array(encoded, pa.binary())], ["file", "rows"]
    )
