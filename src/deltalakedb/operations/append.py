"""Append: rows are staged as files, and a commit adds them. Shared by tables and transactions.

No reader sees the files before the commit. The committer deletes them if it refuses the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Final

from deltalakedb.actions import Action, AddFile, CdcFile, Metadata, RemoveFile
from deltalakedb.actions.arrow import schema_from_any
from deltalakedb.actions.codec import from_dict
from deltalakedb.actions.datatypes import StructType
from deltalakedb.actions.jsonvalue import dumps, loads
from deltalakedb.actions.partition import decode_path
from deltalakedb.arguments import (
    optional_text,
    optional_whole,
    require_flags,
    require_text,
    require_texts,
)
from deltalakedb.errors import ConfigurationError, InvalidSchemaError, UnsupportedFeatureError
from deltalakedb.operations.alter import replace_columns, widen_columns
from deltalakedb.staging.fit import ENFORCED
from deltalakedb.staging.stage import Source, StagePlan, source_of
from deltalakedb.storage import delete_leftovers
from deltalakedb.transaction.commit import (
    AppTxn,
    Commit,
    Guarantees,
    Operation,
    check_app_txn,
    write_metrics,
)
from deltalakedb.transaction.rules import validate_commit

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.conditions.partition_tests import PartitionTest
    from deltalakedb.store import TableRecord
    from deltalakedb.transaction.commit import TableState


_GENERATION: Final = "delta.generationExpression"
_ELSEWHERE: Final = "Write it with Delta on Spark, and adopt what that has committed"
_COMPUTED_BY_WRITERS: Final = {
    _GENERATION: "Write a DataFrame of Spark: table.append(frame), or DeltaTable",
    "delta.identity.start": _ELSEWHERE,
    "CURRENT_DEFAULT": _ELSEWHERE,
}


@dataclass(frozen=True, slots=True)
class Matching:
    """The rows of a table that a write replaces: those that match a new row.

    They have equal values in all columns of `using`, where null equals nothing; or the condition
    `on` holds for both. It names columns of the table by the `alias`, if there is one.
    """

    using: tuple[str, ...] = ()
    on: str | None = None
    alias: str | None = None

    @property
    def parameters(self) -> dict[str, str]:
        """Delta's operation parameters for it."""
        if self.on is not None:
            return {"replaceOnCond": self.on}
        return {"replaceUsingCols": f"({', '.join(self.using)})"}


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How rows will be written: the plan for their files, and the actions that change the table.

    It follows from the columns of the rows and the version of the table in `base`; no row is read.
    Times in `where` without a zone are in `zone`.
    """

    table: TableRecord
    stage: StagePlan
    base: TableState | None
    control: tuple[Action, ...] = ()
    where: str | None = None
    zone: tzinfo = UTC
    replaces_schema: bool = False
    enforced: frozenset[str] = ENFORCED
    matching: Matching | None = None

    @property
    def metadata(self) -> Metadata:
        """The metadata of the table after the write."""
        return self.stage.metadata

    def undo(self, adds: Iterable[AddFile | CdcFile]) -> None:
        """Delete files that no commit will name."""
        unstage(self.stage, adds)


def check_write(
    *,
    app_txn: object = None,
    user_metadata: object = None,
    target_bytes: object = None,
    **flags: object,
) -> None:
    """Refuse arguments of a write that are of the wrong type, before anything is staged."""
    if app_txn is not None:
        check_app_txn(app_txn)
    optional_text("user_metadata", user_metadata)
    optional_whole("target_bytes", target_bytes, least=1)
    require_flags(**flags)


def check_where(where: object) -> None:
    """Refuse a condition that new rows cannot be checked against."""
    if where is not None:
        require_text("where", where, fix="Pass SQL text, e.g. \"day = '2026-11-01'\"")


def plan_rows(
    table: TableRecord,
    base: TableState,
    schema: pa.Schema,
    *,
    storage_options: Mapping[str, str],
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    partition_by: Sequence[str] | None = None,
    where: Any = None,
    zone: tzinfo = UTC,
    target_bytes: int | None = None,
    generates: bool = False,
) -> RowPlan:
    """Plan a write of rows with these columns; with `generates` it computes generated ones."""
    if partition_by is not None:
        partition_by = require_texts("partition_by", partition_by)
    if partition_by is not None and not overwrite_schema:
        raise ConfigurationError(
            f"The partitions of table {table.name!r} cannot change by this write",
            fix="Replace its schema too (overwrite_schema=True), or leave partition_by out",
        )
    control, metadata = _fitted(
        base,
        schema,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        partition_by=partition_by,
    )
    check_generated(table, metadata, generates=generates)
    check_where(where)
    conditions = {} if where is None else {"overwrite where": where}
    plan = stage_plan(table, metadata, storage_options, target_bytes, conditions)
    return RowPlan(
        table,
        plan,
        base,
        control,
        where,
        zone,
        replaces_schema=overwrite_schema and bool(control),
        enforced=ENFORCED | {"generatedColumns"} if generates else ENFORCED,
    )


def appended(plan: RowPlan, adds: list[AddFile]) -> Commit:
    """The commit that adds staged rows."""
    partition_by = dumps(list(plan.metadata.partition_columns))
    return Commit(
        plan.table,
        plan.base,
        (*plan.control, *adds),
        Operation("WRITE", {"mode": "Append", "partitionBy": partition_by}, write_metrics(adds)),
        guarantees=Guarantees(plan.enforced),
        staged=staged_keys(adds),
    )


def append(
    table: TableRecord,
    base: TableState,
    data: Any,
    *,
    storage_options: Mapping[str, str],
    now: int,
    merge_schema: bool = False,
    app_txn: AppTxn | None = None,
    user_metadata: str | None = None,
    target_bytes: int | None = None,
) -> Commit:
    """Stage rows that are added to a table; the commit that adds them."""
    check_write(
        app_txn=app_txn,
        user_metadata=user_metadata,
        target_bytes=target_bytes,
        merge_schema=merge_schema,
    )
    source = source_of(data, base.metadata.schema)
    plan = plan_rows(
        table,
        base,
        source.schema,
        storage_options=storage_options,
        merge_schema=merge_schema,
        target_bytes=target_bytes,
        generates=source.generates,
    )
    commit = appended(plan, source.stage(plan.stage))
    return commit.with_note(user_metadata).with_app_txn(app_txn, now)


def create_as(
    bare: Commit,
    source: Source,
    *,
    storage_options: Mapping[str, str],
    where: str | None = None,
    app_txn: AppTxn | None = None,
    now: int,
    user_metadata: str | None = None,
    target_bytes: int | None = None,
) -> Commit:
    """Stage the rows that a new table begins with; the commit that creates it with them."""
    metadata = bare.summary.metadata
    assert metadata is not None  # noqa: S101 - it creates a table
    generates = source.generates
    enforced = ENFORCED | {"generatedColumns"} if generates else ENFORCED
    # The table itself is checked before anything is written.
    validate_commit(bare.summary, metadata=None, protocol=None, enforced=enforced)
    check_generated(bare.table, metadata, generates=generates)
    check_where(where)
    conditions = {} if where is None else {"overwrite where": where}
    plan = stage_plan(bare.table, metadata, storage_options, target_bytes, conditions)
    adds = source.stage(plan)
    operation = replace(bare.operation, name="CREATE TABLE AS SELECT", metrics=write_metrics(adds))
    commit = replace(
        bare,
        actions=(*bare.actions, *adds),
        operation=operation,
        guarantees=Guarantees(enforced),
        staged=staged_keys(adds),
    )
    return commit.with_note(user_metadata).with_app_txn(app_txn, now)


# --- new rows -----------------------------------------------------------------------------


def _fitted(
    base: TableState,
    schema: pa.Schema,
    *,
    merge_schema: bool,
    overwrite_schema: bool,
    partition_by: Sequence[str] | None = None,
) -> tuple[tuple[Action, ...], Metadata]:
    """The actions that change the columns of a table for new rows, and its metadata then."""
    control: tuple[Action, ...] = ()
    if overwrite_schema:
        control = replace_columns(base, schema, partition_by)
    elif merge_schema:
        control = widen_columns(base, _perhaps_new(schema, base.metadata.schema))
    changed = [action for action in control if isinstance(action, Metadata)]
    return (control, changed[0]) if changed else ((), base.metadata)


def _perhaps_new(schema: pa.Schema, known: StructType) -> StructType:
    """The columns that a table lacks, and nested ones in which it may lack fields."""
    import pyarrow as pa

    fields = list(
        schema_from_any(pa.schema([f for f in schema if known.get(f.name) is None])).fields
    )
    for column in schema:
        if known.get(column.name) is not None and pa.types.is_nested(column.type):
            try:
                fields += schema_from_any(pa.schema([column])).fields
            except InvalidSchemaError:
                # The values may fit nevertheless; staging reports those that do not.
                continue
    return StructType(tuple(fields))


def check_generated(table: TableRecord, metadata: Metadata, *, generates: bool = False) -> None:
    """Refuse tables with columns whose values the writer would have to compute.

    A writer that `generates` evaluates the expressions of generated columns.
    """
    for column in metadata.schema.fields:
        for key, fix in _COMPUTED_BY_WRITERS.items():
            if key in column.metadata and not (generates and key == _GENERATION):
                raise UnsupportedFeatureError(
                    f"Rows of table {table.name!r} cannot be written here",
                    why=f"Column {column.name!r} has {key}, and its values have to be computed",
                    fix=fix,
                )


def stage_plan(
    table: TableRecord,
    metadata: Metadata,
    storage_options: Mapping[str, str],
    target_bytes: int | None,
    conditions: Mapping[str, str] | None = None,
) -> StagePlan:
    """The plan for new files of a table."""
    plan = StagePlan(
        table.name, table.location, metadata, dict(storage_options), conditions=conditions or {}
    )
    return plan if target_bytes is None else replace(plan, target_bytes=target_bytes)


def staged_keys(adds: Iterable[AddFile | CdcFile]) -> tuple[str, ...]:
    """The keys of new files below the location of their table."""
    return tuple(decode_path(add.path) for add in adds)


def unstage(plan: StagePlan, adds: Iterable[AddFile | CdcFile]) -> None:
    """Delete files that no commit will name."""
    delete_leftovers(plan.location, staged_keys(adds), plan.storage_options)


# --- listed files --------------------------------------------------------------------------


def chosen_files(files: pa.Table, test: PartitionTest) -> pa.Table:
    """The listed files whose partition values pass a test."""
    import pyarrow as pa

    known: dict[str, bool] = {}
    mask = []
    for text in files["partition_values"].to_pylist():
        if text not in known:
            known[text] = test(json.loads(text))
        mask.append(known[text])
    return files.filter(pa.array(mask, pa.bool_()))


def rows_of_files(files: pa.Table) -> list[dict[str, Any]]:
    """A listing, file by file."""
    return files.to_pylist()  # type: ignore[no-any-return]


def records_known(row: Mapping[str, Any]) -> int | None:
    """The number of rows of a listed file, deleted ones too; None where it is unknown."""
    stats = None if row["stats"] is None else json.loads(row["stats"])
    known = None if stats is None else stats.get("numRecords")
    return None if known is None else int(known)


def live_rows(row: Mapping[str, Any]) -> int | None:
    """The number of rows of a listed file that are not deleted; None where it is unknown."""
    known = records_known(row)
    if known is None:
        return None
    vector = row["deletion_vector"]
    return known - (0 if vector is None else int(json.loads(vector)["cardinality"]))


def all_live_rows(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """The number of rows of listed files that are not deleted; None where one is unknown."""
    counts = [live_rows(row) for row in rows]
    return None if None in counts else sum(count for count in counts if count)


def remove_of(row: Mapping[str, Any], now: int, *, data_change: bool = True) -> RemoveFile:
    """The action that removes a listed file."""
    known = {
        "path": row["path"],
        "deletionTimestamp": now,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": loads(row["partition_values"]),
        "size": row["size_bytes"],
        "tags": _parsed(row["tags"]),
        "deletionVector": _parsed(row["deletion_vector"]),
        "baseRowId": row["base_row_id"],
        "defaultRowCommitVersion": row["default_row_commit_version"],
    }
    remove = from_dict({"remove": _present(known)})
    assert isinstance(remove, RemoveFile)  # noqa: S101 - by its name
    return remove


def add_of(row: Mapping[str, Any]) -> AddFile:
    """The action that adds a listed file, with the fields that this release does not know."""
    known = {
        "path": row["path"],
        "partitionValues": loads(row["partition_values"]),
        "size": row["size_bytes"],
        "modificationTime": row["modification_time"],
        "dataChange": True,
        "stats": row["stats"],
        "tags": _parsed(row["tags"]),
        "deletionVector": _parsed(row["deletion_vector"]),
        "baseRowId": row["base_row_id"],
        "defaultRowCommitVersion": row["default_row_commit_version"],
        "clusteringProvider": row["clustering_provider"],
    }
    add = from_dict({"add": {**(_parsed(row["extra"]) or {}), **_present(known)}})
    assert isinstance(add, AddFile)  # noqa: S101 - by its name
    return add


def _parsed(text: str | None) -> Any:
    return None if text is None else loads(text)


def _present(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if value is not None}
