"""Compaction: many small files of a partition become few large ones; no row changes.

The plan comes from the catalog. Each bin of it is read and written by itself, in this process or in
another one. Files with deletion vectors are rewritten without the deleted rows.

A concurrent change of one of these files makes the commit fail, and nothing is lost. A concurrent
append is no conflict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltalakedb.actions import AddFile
from deltalakedb.actions.datatypes import StructType
from deltalakedb.actions.jsonvalue import dumps
from deltalakedb.actions.properties import TableProperties
from deltalakedb.arguments import optional_kind, require_function, require_whole
from deltalakedb.conditions.partition_tests import partition_test
from deltalakedb.conditions.where import parse_where
from deltalakedb.errors import ConfigurationError, UnsupportedFeatureError
from deltalakedb.operations.append import (
    chosen_files,
    remove_of,
    rows_of_files,
    stage_plan,
    staged_keys,
    unstage,
)
from deltalakedb.progress import Phases, Progress
from deltalakedb.reading.dataset import open_dataset
from deltalakedb.snapshot.listing import COLUMNS
from deltalakedb.staging.fit import ENFORCED
from deltalakedb.staging.stage import StagePlan, stage
from deltalakedb.threads import Threads
from deltalakedb.transaction.attempt import ReadSet
from deltalakedb.transaction.commit import Commit, Guarantees, Operation, state_of

if TYPE_CHECKING:
    import pyarrow as pa

    from deltalakedb.clock import Clock
    from deltalakedb.snapshot import Snapshot

TARGET_BYTES: Final = 1024 * 1024 * 1024
_MOST_DELETED: Final = 0.05
_THREADS: Final = 2


@dataclass(frozen=True, slots=True)
class Bin:
    """Files that become one; it can be pickled."""

    plan: StagePlan
    files: pa.Table
    schema: StructType
    partition_columns: tuple[str, ...]
    column_mapping_mode: str
    allowed_roots: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(self.files["size_bytes"].to_pylist())


Run: TypeAlias = Callable[[Sequence[Bin]], Iterable[list[AddFile]]]
"""Compacts bins; returns the new files of each."""


@dataclass(frozen=True, slots=True)
class Details:
    """Details of a compaction: sizes of files, bins, deletion vectors and their rows."""

    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    bins: int = 0
    vectors: int = 0
    hidden_rows: int = 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction; `version` is None where there was nothing to do."""

    table: str
    version: int | None
    files_added: int
    files_removed: int
    bytes_added: int
    bytes_removed: int
    files_considered: int
    partitions: int
    details: Details = field(default_factory=Details, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON has them, without the details."""
        return {name: value for name, value in asdict(self).items() if name != "details"}


def compact(
    snapshot: Snapshot,
    clock: Clock,
    *,
    where: str | None = None,
    target_bytes: int | None = None,
    run: Run | None = None,
    progress: Progress | None = None,
) -> tuple[Commit | None, Compaction]:
    """Rewrite small files as large ones; the commit is None where there is nothing to do."""
    require_function("run", run)
    require_function("progress", progress)
    optional_kind("where", where, str, "SQL text")
    phases = Phases(progress)
    target = TARGET_BYTES
    if target_bytes is not None:
        target = require_whole("target_bytes", target_bytes, least=1, fix="Pass e.g. 2**30")
    phases.begin("Finding small files")
    files = files_to_optimize(snapshot, where)
    chosen = _bins(files, target)
    bins = [bin_of(snapshot, files, rows, target) for rows in chosen]
    removed = [row for rows in chosen for row in rows]
    if not bins:
        return None, Compaction(snapshot.table.name, None, 0, 0, 0, 0, files.num_rows, 0)
    adds: list[AddFile] = []
    phases.begin("Rewriting files", main=True)
    try:
        for done, files_of_bin in enumerate((run or run_here)(bins), start=1):
            adds += files_of_bin
            phases(done, len(bins))
    except BaseException:
        unstage(bins[0].plan, adds)
        raise
    return optimized(
        snapshot,
        removed,
        adds,
        now=clock.now_ms(),
        considered=files.num_rows,
        where=where,
        columns=(),
        bins=len(bins),
    )


def run_here(bins: Sequence[Bin]) -> Iterable[list[AddFile]]:
    """Compact bins in this process."""
    with Threads(_THREADS) as pool:
        yield from pool.map(compact_bin, bins)


def compact_bin(one: Bin) -> list[AddFile]:
    """Read the files of a bin and write their rows to as few files as their size allows."""
    rows = open_dataset(
        one.files,
        location=one.plan.location,
        schema=one.schema,
        partition_columns=one.partition_columns,
        column_mapping_mode=one.column_mapping_mode,
        storage_options=one.plan.storage_options,
        allowed_roots=one.allowed_roots,
    )
    return stage(one.plan, rows.to_batches())


def files_to_optimize(snapshot: Snapshot, where: str | None) -> pa.Table:
    """The files of the partitions for which a condition is true, with every column."""
    metadata = snapshot.metadata
    if TableProperties(snapshot.properties).enable_row_tracking:
        raise UnsupportedFeatureError(
            f"Files of table {snapshot.table.name!r} cannot be rewritten",
            why="It tracks rows, and rows that move to another file would lose their ids",
            fix="Optimise it with Delta on Spark, and adopt what that has committed",
        )
    if where is None:
        return snapshot.files(columns=COLUMNS)
    predicate = parse_where(where, metadata.schema, metadata.partition_columns)
    test = partition_test(predicate, metadata)
    if test is None:
        raise ConfigurationError(
            f"The condition {where!r} is not one of partitions alone",
            why="Files are optimised as a whole; the partition columns are: "
            f"{', '.join(metadata.partition_columns) or 'none'}",
            fix="Name partition columns only",
        )
    return chosen_files(snapshot.files(where=predicate, columns=COLUMNS), test)


def bin_of(snapshot: Snapshot, files: pa.Table, rows: list[dict[str, Any]], target: int) -> Bin:
    """A bin of listed files."""
    import pyarrow as pa

    plan = stage_plan(
        snapshot.table, snapshot.metadata, snapshot.storage_options, target_bytes=2 * target
    )
    mode = TableProperties(snapshot.properties).column_mapping_mode
    return Bin(
        # The rows were checked when they came in.
        plan=replace(plan, data_change=False, enforce=False),
        files=pa.Table.from_pylist(rows, schema=files.schema),
        schema=snapshot.schema,
        partition_columns=snapshot.partition_columns,
        column_mapping_mode=mode,
        allowed_roots=snapshot.table.allowed_roots,
    )


def _bins(files: pa.Table, target: int) -> list[list[dict[str, Any]]]:
    """Groups of files of the same partition up to the target size; at least two each."""
    by_partition: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of_files(files):
        if row["size_bytes"] < target or _worth_it(row):
            by_partition.setdefault(row["partition_values"], []).append(row)
    bins: list[list[dict[str, Any]]] = []
    for _, rows in sorted(by_partition.items()):
        held: list[dict[str, Any]] = []
        size = 0
        # By age, so that rows of one commit stay together.
        for row in sorted(rows, key=lambda r: (r["added_version"], r["path"])):
            if held and size + row["size_bytes"] > target:
                bins.append(held)
                held, size = [], 0
            held.append(row)
            size += row["size_bytes"]
        bins.append(held)
    return [rows for rows in bins if len(rows) > 1 or (rows and _worth_it(rows[0]))]


def _worth_it(row: dict[str, Any]) -> bool:
    """Whether a file is worth a rewrite by itself: many of its rows are deleted."""
    if row["deletion_vector"] is None:
        return False
    records = (json.loads(row["stats"]) if row["stats"] else {}).get("numRecords")
    deleted = json.loads(row["deletion_vector"])["cardinality"]
    return records is None or deleted > records * _MOST_DELETED


def optimized(
    snapshot: Snapshot,
    removed: list[dict[str, Any]],
    adds: list[AddFile],
    *,
    now: int,
    considered: int,
    where: str | None,
    columns: Sequence[str],
    clustered_by: Sequence[str] = (),
    bins: int = 1,
) -> tuple[Commit, Compaction]:
    """The commit that replaces files by others with the same rows, and its result."""
    removes = [remove_of(row, now, data_change=False) for row in removed]
    sizes = sorted(add.size for add in adds) or [0]
    before = sum(row["size_bytes"] for row in removed)
    vectors = [row["deletion_vector"] for row in removed if row["deletion_vector"] is not None]
    metrics = {
        "numRemovedFiles": len(removes),
        "numRemovedBytes": before,
        "numAddedFiles": len(adds),
        "numAddedBytes": sum(add.size for add in adds),
        "numDeletionVectorsRemoved": len(vectors),
        "minFileSize": sizes[0],
        "p25FileSize": sizes[len(sizes) // 4],
        "p50FileSize": sizes[len(sizes) // 2],
        "p75FileSize": sizes[len(sizes) * 3 // 4],
        "maxFileSize": sizes[-1],
    }
    commit = Commit(
        snapshot.table,
        state_of(snapshot),
        (*removes, *adds),
        Operation(
            "OPTIMIZE",
            {
                "predicate": dumps([] if where is None else [where]),
                "zOrderBy": dumps(list(columns)),
                "clusterBy": dumps(list(clustered_by)) if clustered_by else None,
                "auto": False,
            },
            {name: str(value) for name, value in metrics.items()},
        ),
        ReadSet(files=frozenset(row["path"] for row in removed)),
        Guarantees(ENFORCED),
        staged=staged_keys(adds),
    )
    return commit, Compaction(
        table=snapshot.table.name,
        version=None,
        files_added=len(adds),
        files_removed=len(removes),
        bytes_added=metrics["numAddedBytes"],
        bytes_removed=before,
        files_considered=considered,
        partitions=len({row["partition_values"] for row in removed}),
        details=Details(
            added=tuple(sizes) if adds else (),
            removed=tuple(sorted(row["size_bytes"] for row in removed)),
            bins=bins,
            vectors=len(vectors),
            hidden_rows=sum(json.loads(vector)["cardinality"] for vector in vectors),
        ),
    )
