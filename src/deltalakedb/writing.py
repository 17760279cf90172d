"""Rows become a commit: appended, or in the place of others. Shared by tables and transactions.

Files are staged first and committed afterwards; nobody sees them before. When the commit is refused
they are deleted again, unless its outcome is unknown: then they may be part of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from deltalakedb.actions import Action, AddFile, Metadata, RemoveFile
from deltalakedb.actions.codec import from_dict
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.partition import decode_partition_value, decode_path
from deltalakedb.actions.properties import TableProperties
from deltalakedb.actions.schema import physical_name
from deltalakedb.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    DeltaLakeDbError,
    UnsupportedFeatureError,
)
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.snapshot.row_filter import row_filter
from deltalakedb.snapshot.where import parse_where
from deltalakedb.staging.constraints import ENFORCED
from deltalakedb.staging.fit import new_columns
from deltalakedb.staging.sinks import Sinks
from deltalakedb.staging.sources import Source, source_of
from deltalakedb.staging.stage import StagePlan, stage
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.change_table import add_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.snapshot import Snapshot
    from deltalakedb.snapshot.predicate import Predicate
    from deltalakedb.store import TableRecord
    from deltalakedb.transaction.state import TableState


@dataclass(frozen=True, slots=True)
class Written:
    """A write that is staged: the actions of its commit, and what they depend on."""

    actions: tuple[Action, ...]
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    undo: Callable[[], None] = field(repr=False)
    read: ReadSet | None = None
    operation: str = "WRITE"
    enforced: frozenset[str] = ENFORCED

    def committed_by(self, commit: Callable[[], Any]) -> Any:
        """Commit; what was staged is deleted where that is refused."""
        try:
            return commit()
        except CommitOutcomeUnknownError:
            raise
        except DeltaLakeDbError:
            self.undo()
            raise


def write_append(
    table: TableRecord,
    base: TableState,
    data: Any,
    *,
    storage_options: Mapping[str, str],
    merge_schema: bool = False,
    target_bytes: int | None = None,
) -> Written:
    """Stage rows that are added to a table."""
    source, control, metadata = _prepared(table, base, data, merge_schema=merge_schema)
    plan = stage_plan(table, metadata, storage_options, target_bytes)
    adds = source.stage(plan)
    return Written(
        actions=(*control, *adds),
        parameters={"mode": "Append", "partitionBy": dumps(list(metadata.partition_columns))},
        metrics=write_metrics(adds),
        undo=lambda: _undo(plan, adds),
    )


def write_overwrite(
    snapshot: Snapshot,
    base: TableState,
    data: Any,
    *,
    where: Any = None,
    storage_options: Mapping[str, str],
    now: int,
    merge_schema: bool = False,
    target_bytes: int | None = None,
) -> Written:
    """Stage rows that take the place of all rows, or of those that fulfil a condition."""
    table = snapshot.table
    source, control, metadata = _prepared(table, base, data, merge_schema=merge_schema)
    parameters = {"mode": "Overwrite", "partitionBy": dumps(list(metadata.partition_columns))}
    if where is None:
        plan = stage_plan(table, metadata, storage_options, target_bytes)
        adds = source.stage(plan)
        removed = rows_of_files(snapshot.files(columns=COLUMNS))
        return Written(
            actions=(*control, *(remove_of(row, now) for row in removed), *adds),
            parameters=parameters,
            metrics={**write_metrics(adds), "numRemovedFiles": str(len(removed))},
            undo=lambda: _undo(plan, adds),
            read=ReadSet(whole_table=True),
        )
    if not isinstance(where, str):
        raise ConfigurationError(
            f"where={where!r} is no condition that the new rows can be checked against",
            fix="Pass SQL text, e.g. \"day = '2026-11-01'\"",
        )
    predicate = parse_where(where, metadata.schema, metadata.partition_columns)
    plan = stage_plan(table, metadata, storage_options, target_bytes, {"overwrite where": where})
    adds = source.stage(plan)
    try:
        removes, kept, read = _replaced(snapshot, predicate, plan, now)
    except BaseException:
        _undo(plan, adds)
        raise
    return Written(
        actions=(*control, *removes, *kept, *adds),
        parameters={**parameters, "predicate": dumps([where])},
        metrics={**write_metrics([*kept, *adds]), "numRemovedFiles": str(len(removes))},
        undo=lambda: _undo(plan, [*kept, *adds]),
        read=read,
    )


# --- the rows that come -------------------------------------------------------------------


def _prepared(
    table: TableRecord, base: TableState, data: Any, *, merge_schema: bool
) -> tuple[Source, tuple[Action, ...], Metadata]:
    """The rows, the actions that make the table fit for them, and its metadata then."""
    check_generated(table, base.metadata)
    source = source_of(data)
    added = new_columns(source.schema, base.metadata.schema) if merge_schema else []
    if not added:
        return source, (), base.metadata
    import pyarrow as pa

    fields = [source.schema.field(i).with_nullable(nullable=True) for i in added]
    control = add_columns(table, base, pa.schema(fields)).actions
    return source, control, next(action for action in control if isinstance(action, Metadata))


def check_generated(table: TableRecord, metadata: Metadata) -> None:
    """Refuse tables some of whose columns have values that the writer would have to make."""
    for column in metadata.schema.fields:
        for key in ("delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT"):
            if key in column.metadata:
                raise UnsupportedFeatureError(
                    f"Rows of table {table.name!r} cannot be written here",
                    why=f"Column {column.name!r} has {key}, and its values would have to be made",
                    fix="Write through Spark",
                )


def stage_plan(
    table: TableRecord,
    metadata: Metadata,
    storage_options: Mapping[str, str],
    target_bytes: int | None,
    conditions: Mapping[str, str] | None = None,
) -> StagePlan:
    """How files of a table are written."""
    plan = StagePlan(
        table.name, table.location, metadata, dict(storage_options), conditions=conditions or {}
    )
    return plan if target_bytes is None else replace(plan, target_bytes=target_bytes)


def _undo(plan: StagePlan, adds: Iterable[AddFile]) -> None:
    Sinks(plan.location, plan.storage_options).delete([decode_path(add.path) for add in adds])


def write_metrics(adds: Iterable[AddFile]) -> dict[str, str]:
    """What Delta's history says of files that a write has added."""
    files = list(adds)
    rows = sum(json.loads(add.stats)["numRecords"] for add in files if add.stats)
    return {
        "numFiles": str(len(files)),
        "numOutputRows": str(rows),
        "numOutputBytes": str(sum(add.size for add in files)),
    }


# --- the rows that go ---------------------------------------------------------------------


def _replaced(
    snapshot: Snapshot, predicate: Predicate, plan: StagePlan, now: int
) -> tuple[list[RemoveFile], list[AddFile], ReadSet]:
    """Files to remove, files with the rows of them that stay, and what was read for it."""
    found = snapshot.files(where=predicate, columns=COLUMNS)
    candidates = rows_of_files(found)
    test = partition_test(predicate, snapshot.metadata)
    if test is not None:
        removed = [row for row in candidates if test(json.loads(row["partition_values"]))]
        read = ReadSet(partitions=test, files=frozenset(row["path"] for row in removed))
        return [remove_of(row, now) for row in removed], [], read
    removes: list[RemoveFile] = []
    kept: list[AddFile] = []
    rest = replace(plan, conditions={})
    try:
        for position, row in enumerate(candidates):
            rows = _rows_of(snapshot, found.slice(position, 1))
            staying = rows.filter(_not_true(predicate))
            if staying.num_rows == rows.num_rows:
                continue
            removes.append(remove_of(row, now))
            if staying.num_rows:
                _check_no_change_data(snapshot)
                kept += stage(rest, staying.to_batches())
    except BaseException:
        _undo(plan, kept)
        raise
    files = frozenset(row["path"] for row in candidates)
    return removes, kept, ReadSet(partitions=lambda _: True, files=files)


def _rows_of(snapshot: Snapshot, file: pa.Table) -> pa.Table:
    from deltalakedb.snapshot.dataset import open_dataset

    return open_dataset(
        file,
        location=snapshot.table.location,
        schema=snapshot.schema,
        partition_columns=snapshot.partition_columns,
        column_mapping_mode=TableProperties(snapshot.properties).column_mapping_mode,
        storage_options=snapshot.storage_options,
    ).to_table()


def _not_true(predicate: Predicate) -> Any:
    import pyarrow.compute as pc

    return ~pc.coalesce(row_filter(predicate), pc.scalar(False))  # noqa: FBT003


def partition_test(
    predicate: Predicate, metadata: Metadata
) -> Callable[[Mapping[str, str | None]], bool] | None:
    """Whether a file of a partition has only rows for the condition; None where rows differ."""
    from deltalakedb.snapshot.predicate import columns_of

    partitions = {name.lower() for name in metadata.partition_columns}
    if not all(len(c.path) == 1 and c.path[0].lower() in partitions for c in columns_of(predicate)):
        return None
    expression = row_filter(predicate)
    columns = [metadata.schema.field(name) for name in metadata.partition_columns]

    def test(values: Mapping[str, str | None]) -> bool:
        import pyarrow as pa

        from deltalakedb.actions.arrow import type_to_arrow

        arrays = {
            column.name: pa.array(
                [decode_partition_value(values.get(physical_name(column)), column.type)],
                type_to_arrow(column.type),
            )
            for column in columns
        }
        return bool(pa.table(arrays).filter(expression).num_rows)

    return test


def _check_no_change_data(snapshot: Snapshot) -> None:
    if TableProperties(snapshot.properties).enable_change_data_feed:
        raise UnsupportedFeatureError(
            f"Table {snapshot.table.name!r} keeps a change data feed, and some of its files have "
            "rows that stay and rows that go",
            why="The change data of such rows is only written through Spark",
            fix="Write through Spark, or use a condition on partition columns alone",
        )


def rows_of_files(files: pa.Table) -> list[dict[str, Any]]:
    """A listing, file by file."""
    return files.to_pylist()  # type: ignore[no-any-return]


def remove_of(row: Mapping[str, Any], now: int, *, data_change: bool = True) -> RemoveFile:
    """The action that removes a listed file."""
    body: dict[str, Any] = {
        "path": row["path"],
        "deletionTimestamp": now,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": json.loads(row["partition_values"]),
        "size": row["size_bytes"],
        "tags": None if row["tags"] is None else json.loads(row["tags"]),
        "deletionVector": None
        if row["deletion_vector"] is None
        else json.loads(row["deletion_vector"]),
        "baseRowId": row["base_row_id"],
        "defaultRowCommitVersion": row["default_row_commit_version"],
    }
    made = from_dict({"remove": {key: value for key, value in body.items() if value is not None}})
    assert isinstance(made, RemoveFile)  # noqa: S101 - that is what it says
    return made
