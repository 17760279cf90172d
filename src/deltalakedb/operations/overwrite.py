"""Overwrite: new rows replace others.

They replace all rows, those for a condition, those of the partitions of the new rows, or those that
match one of the new rows. New rows are staged first. The replaced rows are those of the snapshot
that the write was planned from; the commit is based on it, and fails after a concurrent change of
these rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from deltalakedb.actions import AddFile, CdcFile, RemoveFile
from deltalakedb.actions.clustering import reclustered
from deltalakedb.actions.datatypes import BINARY, BOOLEAN, DOUBLE, FLOAT, StructField, physical_name
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.partition import decode_partition_value
from deltalakedb.actions.properties import TableProperties
from deltalakedb.conditions.partition_tests import partition_test
from deltalakedb.conditions.predicate import (
    Column,
    Null,
    Predicate,
    conjunction,
    disjunction,
    is_exact,
    one_of,
)
from deltalakedb.conditions.row_filter import row_filter
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import ConfigurationError, UnsupportedFeatureError
from deltalakedb.operations.append import (
    Matching,
    RowPlan,
    all_live_rows,
    check_write,
    chosen_files,
    plan_rows,
    remove_of,
    rows_of_files,
    staged_keys,
    unstage,
)
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.staging.change_data import ChangeData
from deltalakedb.staging.stage import StagePlan, source_of, stage
from deltalakedb.storage import delete_leftovers
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import (
    AppTxn,
    Commit,
    Guarantees,
    Operation,
    state_of,
    write_metrics,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.reading.dataset import SnapshotRows
    from deltalakedb.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Replaced:
    """The files whose rows are replaced; `staged` are the keys of new files."""

    removes: list[RemoveFile]
    read: ReadSet
    copied: list[AddFile] = field(default_factory=list)
    """New files with the remaining rows of removed ones."""
    marked: list[AddFile] = field(default_factory=list)
    """Files that stay, with new deletion vectors."""
    changes: list[CdcFile] = field(default_factory=list)
    deleted: int | None = None
    """The number of replaced rows; None where it is unknown."""
    staged: tuple[str, ...] = ()


Take: TypeAlias = Callable[[list[AddFile]], Replaced]
"""Removes the replaced rows, with the files of the new rows as argument."""


@runtime_checkable
class Replaces(Protocol):
    """A source of rows that removes the replaced rows itself."""

    def replacing(self, snapshot: Snapshot, plan: RowPlan, now: int) -> Take | None:
        """Refuse an invalid condition before anything is written; None for the general way."""
        ...


def overwrite(
    snapshot: Snapshot,
    data: Any,
    *,
    where: Any = None,
    storage_options: Mapping[str, str],
    now: int,
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    partition_by: Sequence[str] | None = None,
    dynamic: bool = False,
    app_txn: AppTxn | None = None,
    user_metadata: str | None = None,
    target_bytes: int | None = None,
    matching: Matching | None = None,
    data_change: bool = True,
) -> Commit:
    """Stage rows that replace all rows, or those for a condition; returns the commit.

    Without `data_change` they are the same rows in other files, and no change for readers.
    """
    check_write(
        app_txn=app_txn,
        user_metadata=user_metadata,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        dynamic=dynamic,
        data_change=data_change,
        target_bytes=target_bytes,
    )
    check_overwrite(
        snapshot.partition_columns, where=where, overwrite_schema=overwrite_schema, dynamic=dynamic
    )
    source = source_of(data, snapshot.schema)
    plan = plan_rows(
        snapshot.table,
        state_of(snapshot),
        source.schema,
        storage_options=storage_options,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        partition_by=partition_by,
        where=where,
        target_bytes=target_bytes,
        generates=source.generates,
    )
    plan = replace(plan, matching=matching)
    if not data_change:
        check_rearranges(plan)
    take: Take | None = None
    if where is not None or matching is not None:
        # An invalid condition is refused before anything is written.
        if isinstance(source, Replaces):
            take = source.replacing(snapshot, plan, now)
        if take is None:
            _check_without_spark(plan)
            plan = replace(plan, zone=source.zone())
            _condition(plan)
    adds = source.stage(plan.stage)
    commit = overwritten(
        plan, adds, snapshot, now=now, dynamic=dynamic, take=take, data_change=data_change
    )
    return commit.with_note(user_metadata).with_app_txn(app_txn, now)


def check_overwrite(
    partition_columns: Sequence[str], *, where: Any, overwrite_schema: bool, dynamic: bool
) -> None:
    """Refuse options that contradict each other."""
    if where is not None and (overwrite_schema or dynamic):
        raise ConfigurationError(
            "A condition cannot be combined with another schema or with partitions that the rows "
            "name themselves",
            fix="Leave `where` out, or the other one",
        )
    if overwrite_schema and dynamic and partition_columns:
        raise ConfigurationError(
            "The schema cannot be overwritten by a dynamic overwrite of partitions",
            why="The partitions that stay have rows of the schema that is there now",
            fix="Overwrite the whole table (dynamic=False, or partitionOverwriteMode=static), or "
            "leave overwrite_schema out; merge_schema adds columns",
        )


def check_rearranges(plan: RowPlan) -> None:
    """Refuse a write with dataChange=false that would do more than move rows to other files."""
    reason = None
    if plan.matching is not None:
        reason = "rows that match new ones are replaced"
    elif plan.control:
        reason = "the columns or partitions of the table would change"
    elif plan.where is not None:
        predicate = parse_where(
            plan.where, plan.metadata.schema, plan.metadata.partition_columns, strict=False
        )
        if not is_exact(predicate) or partition_test(predicate, plan.metadata) is None:
            reason = f"the condition {plan.where} is not about partitions alone"
    if reason is not None:
        raise ConfigurationError(
            f"Table {plan.stage.table!r} cannot be rewritten with dataChange=false",
            why=f"That is for the same rows in other files, and {reason}",
            fix="Leave dataChange out",
        )


def _rearranged(
    plan: RowPlan, replaced: Replaced, adds: list[AddFile]
) -> tuple[Replaced, list[AddFile]]:
    """The same files with dataChange=false; refused where the numbers of rows differ."""
    added = int(write_metrics(adds)["numOutputRows"])
    if replaced.deleted is not None and replaced.deleted != added:
        raise ConfigurationError(
            f"Table {plan.stage.table!r} cannot be rewritten with dataChange=false",
            why=f"{replaced.deleted} rows would be replaced by {added}: they are not the same",
            fix="Leave dataChange out; or read the rows again, if others have been added since",
        )
    removes = [replace(remove, data_change=False) for remove in replaced.removes]
    return replace(replaced, removes=removes), [replace(add, data_change=False) for add in adds]


def overwritten(
    plan: RowPlan,
    adds: list[AddFile],
    snapshot: Snapshot,
    *,
    now: int,
    dynamic: bool = False,
    take: Take | None = None,
    data_change: bool = True,
) -> Commit:
    """The commit that replaces rows by staged ones.

    It replaces all rows, those for the plan's condition, or with `dynamic` those of the partitions
    of the new rows.
    """
    parameters = {
        "mode": "Overwrite",
        "partitionBy": dumps(list(plan.metadata.partition_columns)),
    }
    control = plan.control
    replaced: Replaced | None = None
    try:
        replaced = _replaced(plan, adds, snapshot, now=now, dynamic=dynamic, take=take)
        if not data_change:
            replaced, adds = _rearranged(plan, replaced, adds)
        if plan.replaces_schema and snapshot.clustering_columns:
            domains = snapshot.domain_metadata
            control += reclustered(snapshot.metadata, plan.metadata, domains)
    except BaseException:
        plan.undo(adds)
        if replaced is not None:
            delete_leftovers(plan.stage.location, replaced.staged, plan.stage.storage_options)
        raise
    removed = len(replaced.removes) - len(replaced.marked)
    metrics = {**write_metrics([*replaced.copied, *adds]), "numRemovedFiles": str(removed)}
    if replaced.deleted is not None and (plan.where is not None or plan.matching is not None):
        metrics["numDeletedRows"] = str(replaced.deleted)
        metrics["numCopiedRows"] = write_metrics(replaced.copied)["numOutputRows"]
    if replaced.changes:
        metrics["numAddedChangeFiles"] = str(len(replaced.changes))
    if replaced.marked:
        metrics["numDeletionVectorsAdded"] = str(len(replaced.marked))
    if plan.where is not None:
        parameters["predicate"] = dumps([plan.where])
    if plan.matching is not None:
        parameters |= plan.matching.parameters
    if dynamic:
        parameters["isDynamicPartitionOverwrite"] = "true"
    # Files that stay have the old schema.
    replaces_all = plan.replaces_schema and len(replaced.removes) == snapshot.num_files
    return Commit(
        plan.table,
        plan.base,
        (*control, *replaced.removes, *replaced.marked, *replaced.copied, *adds, *replaced.changes),
        Operation("WRITE", parameters, metrics),
        replaced.read,
        Guarantees(plan.enforced, replaces_all=replaces_all),
        staged=(*staged_keys(adds), *replaced.staged),
    )


def _replaced(
    plan: RowPlan,
    adds: list[AddFile],
    snapshot: Snapshot,
    *,
    now: int,
    dynamic: bool,
    take: Take | None,
) -> Replaced:
    """The replaced files, and the read set."""
    if take is not None:
        return take(adds)
    _check_without_spark(plan)
    if dynamic and snapshot.partition_columns:
        return _partitions_replaced(adds, snapshot, now)
    if plan.where is None:
        rows = rows_of_files(snapshot.files(columns=COLUMNS))
        removes = [remove_of(row, now) for row in rows]
        return Replaced(removes, ReadSet(whole_table=True), deleted=all_live_rows(rows))
    return _rows_replaced(plan, adds, snapshot, now)


def _check_without_spark(plan: RowPlan) -> None:
    """Refuse a match of rows, which only Spark can do."""
    if plan.matching is not None:
        raise ConfigurationError(
            f"Rows of table {plan.stage.table!r} that match the new ones cannot be replaced here",
            why="Only Spark's own scan can match them",
            fix="Use replaceWhere, or a Spark DataFrame of a classic session",
        )


# --- partitions ---------------------------------------------------------------------------


def _partitions_replaced(adds: list[AddFile], snapshot: Snapshot, now: int) -> Replaced:
    """The files of the partitions of new files, by value."""
    columns = [snapshot.schema.field(name) for name in snapshot.partition_columns]

    def values_of(values: Mapping[str, str | None]) -> tuple[Any, ...]:
        return tuple(_comparable(column, values.get(physical_name(column))) for column in columns)

    named = {values_of(add.partition_values) for add in adds}

    def in_them(values: Mapping[str, str | None]) -> bool:
        return values_of(values) in named

    among = conjunction(
        _among(column, {values[i] for values in named}) for i, column in enumerate(columns)
    )
    rows = rows_of_files(chosen_files(snapshot.files(where=among, columns=COLUMNS), in_them))
    read = ReadSet(partitions=in_them, files=frozenset(row["path"] for row in rows))
    return Replaced([remove_of(row, now) for row in rows], read, deleted=all_live_rows(rows))


def _comparable(column: StructField, text: str | None) -> Any:
    """A partition value that is equal to itself; None for null."""
    value = decode_partition_value(text, column.type)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _among(field: StructField, values: set[Any]) -> Predicate:
    """A predicate that a partition column has one of the values, or a weaker one."""
    column = Column((field.name,), (physical_name(field),), field.type, is_partition=True)
    known = values - {None}
    listed = one_of(column, known)
    if field.type in (FLOAT, DOUBLE) and not all(v != "NaN" and math.isfinite(v) for v in known):
        # Conditions name finite numbers only.
        listed = Null(column, negated=True)
    elif known and (field.type == BINARY or (field.type == BOOLEAN and len(known) > 1)):
        listed = Null(column, negated=True)
    return disjunction([listed, Null(column)] if None in values else [listed])


# --- rows ---------------------------------------------------------------------------------


def _condition(plan: RowPlan) -> Predicate:
    metadata = plan.metadata
    return parse_where(plan.where, metadata.schema, metadata.partition_columns, zone=plan.zone)


def as_planned(snapshot: Snapshot, plan: RowPlan) -> Snapshot:
    """The snapshot with the columns that the write adds, as nulls."""
    return replace(snapshot, metadata=plan.metadata)


def _rows_replaced(plan: RowPlan, adds: list[AddFile], snapshot: Snapshot, now: int) -> Replaced:
    """The rows for a condition; the remaining rows of their files are copied to new files."""
    predicate = _condition(plan)
    snapshot = as_planned(snapshot, plan)
    files = snapshot.files(where=predicate, columns=COLUMNS)
    test = partition_test(predicate, snapshot.metadata)
    if test is not None:
        removed = rows_of_files(chosen_files(files, test))
        read = ReadSet(partitions=test, files=frozenset(row["path"] for row in removed))
        removes = [remove_of(row, now) for row in removed]
        return Replaced(removes, read, deleted=all_live_rows(removed))
    rewrite = _Rewrite(snapshot, plan.stage, predicate)
    try:
        for position, row in enumerate(rows_of_files(files)):
            if rewrite.copy(files.slice(position, 1)):
                rewrite.removes.append(remove_of(row, now))
        changes = rewrite.change_data(adds)
    except BaseException:
        rewrite.undo()
        raise
    copied = rewrite.copied
    read = ReadSet(partitions=lambda _: True, files=frozenset(files["path"].to_pylist()))
    staged = staged_keys([*copied, *changes])
    return Replaced(rewrite.removes, read, copied=copied, changes=changes, staged=staged)


class _Rewrite:
    """Copies files one by one without the replaced rows; memory holds a few batches."""

    def __init__(self, snapshot: Snapshot, plan: StagePlan, predicate: Predicate) -> None:
        import pyarrow.compute as pc

        self._snapshot = snapshot
        self._plan = plan
        self._goes = row_filter(predicate)
        self._stays = ~pc.coalesce(self._goes, pc.scalar(False))  # noqa: FBT003
        properties = TableProperties(snapshot.properties)
        self._row_tracking = properties.enable_row_tracking
        self._feed = ChangeData(plan) if properties.enable_change_data_feed else None
        self.removes: list[RemoveFile] = []
        self.copied: list[AddFile] = []

    def copy(self, file: pa.Table) -> bool:
        """Copy the remaining rows of a file; False where all remain."""
        rows = self._rows(file)
        if not rows.count_rows(filter=self._goes):
            return False
        # The rows were checked when they were written.
        rest = replace(self._plan, conditions={}, enforce=False)
        copied = stage(rest, rows.to_batches(filter=self._stays))
        self.copied += copied
        if copied and self._row_tracking:
            raise UnsupportedFeatureError(
                f"Rows of table {self._plan.table!r} cannot be rewritten",
                why="It tracks rows, and rows that move to another file would lose their ids",
                fix="Replace whole partitions or files; or write a DataFrame of Spark, with "
                "deletion vectors switched on (delta.enableDeletionVectors)",
            )
        if self._feed is not None:
            self._feed.write(rows.to_batches(filter=self._goes), "delete")
        return True

    def change_data(self, adds: list[AddFile]) -> list[CdcFile]:
        """The change data; none where only whole files are removed, which the log itself has."""
        if self._feed is None:
            return []
        if not self.copied:
            self._feed.drop()
            return []
        self._feed.write(_staged_rows(self._plan, adds), "insert")
        return self._feed.finish()

    def undo(self) -> None:
        """Delete the new files."""
        unstage(self._plan, self.copied)
        if self._feed is not None:
            self._feed.give_up()

    def _rows(self, file: pa.Table) -> SnapshotRows:
        from deltalakedb.reading.dataset import open_dataset

        snapshot = self._snapshot
        return open_dataset(
            file,
            location=snapshot.table.location,
            schema=snapshot.schema,
            partition_columns=snapshot.partition_columns,
            column_mapping_mode=TableProperties(snapshot.properties).column_mapping_mode,
            storage_options=snapshot.storage_options,
            allowed_roots=snapshot.table.allowed_roots,
        )


def _staged_rows(plan: StagePlan, adds: Iterable[AddFile]) -> Iterator[pa.RecordBatch]:
    """The rows of files that have just been written."""
    from deltalakedb.reading.dataset import open_dataset
    from deltalakedb.snapshot.listing import files_of_adds

    metadata = plan.metadata
    rows: Iterator[pa.RecordBatch] = open_dataset(
        files_of_adds(adds, 0),
        location=plan.location,
        schema=metadata.schema,
        partition_columns=metadata.partition_columns,
        column_mapping_mode=TableProperties(metadata.configuration).column_mapping_mode,
        storage_options=plan.storage_options,
    ).to_batches()
    return rows
