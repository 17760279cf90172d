"""OPTIMIZE on Spark: compaction of files, and order of rows along a Z-curve.

Compaction does not move rows through the JVM: each task reads the files of a bin and writes new
ones, by the functions of one process.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from deltalakedb.actions import AddFile
from deltalakedb.actions.clustering import clustering_paths, dotted
from deltalakedb.actions.datatypes import ColumnPath, DataType, DecimalType, StructType
from deltalakedb.errors import (
    ConfigurationError,
    DataFileError,
    InvalidArgumentError,
)
from deltalakedb.operations.append import live_rows, rows_of_files
from deltalakedb.operations.compact import (
    TARGET_BYTES,
    Bin,
    Compaction,
    bin_of,
    compact_bin,
    files_to_optimize,
    optimized,
)
from deltalakedb.snapshot import Snapshot
from deltalakedb.spark.dml.assignments import name_parts
from deltalakedb.spark.dml.changes import written_rows
from deltalakedb.spark.io.scan import quoted, scan_files
from deltalakedb.spark.io.stage import stage_frame
from deltalakedb.spark.jobs.tasks import run_tasks
from deltalakedb.table import Table

_BUCKETS: Final = 256
_BITS: Final = 8
_BITS_A_NUMBER: Final = 62
# Types whose values Spark sorts, and moves to Python and back unchanged.
_ORDERED: Final = frozenset(
    {"string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double"}
    | {"date", "timestamp", "timestamp_ntz"}
)
_SAMPLED: Final = 200_000
_PROVIDER: Final = "liquid"
_CUBE_BYTES: Final = 100 * 1024**3


def optimize(
    spark: SparkSession, table: Table, *, where: str | None, target_bytes: int = TARGET_BYTES
) -> Compaction:
    """Rewrite small files as large ones, on the executors."""

    def run(bins: Sequence[Bin]) -> Iterable[list[AddFile]]:
        largest_first = sorted(bins, key=lambda one: -one.size)
        return run_tasks(spark, compact_bin, largest_first)

    return table.optimize(where=where, target_bytes=target_bytes, run=run)


# --- Z-order ------------------------------------------------------------------------------


def z_order(
    spark: SparkSession,
    table: Table,
    columns: Sequence[str],
    *,
    where: str | None,
    target_bytes: int = TARGET_BYTES,
) -> Compaction:
    """Rewrite all rows, so that rows with similar values of these columns share files."""
    snapshot = table.snapshot()
    paths = _checked(snapshot, columns)
    files = files_to_optimize(snapshot, where)
    rows = rows_of_files(files)
    if not rows:
        return Compaction(table.name, None, 0, 0, 0, 0, 0, 0)
    adds = _ordered(spark, snapshot, files, paths, target_bytes)
    names = [path[0] if len(path) == 1 else dotted(path) for path in paths]
    commit, done = optimized(
        snapshot,
        rows,
        adds,
        now=table.now_ms(),
        considered=len(rows),
        where=where,
        columns=names,
        # All rows of a partition are one bin.
        bins=len({row["partition_values"] for row in rows}),
    )
    return replace(done, version=int(table.submit(commit)))


def _ordered(
    spark: SparkSession,
    snapshot: Snapshot,
    files: pa.Table,
    columns: Sequence[ColumnPath],
    target_bytes: int,
) -> list[AddFile]:
    """Write the rows of files along a Z-curve of columns."""
    rows = rows_of_files(files)
    frame = scan_files(spark, snapshot, files)
    share = _share(rows)
    # Each bucket is a search, computed once: the bits of the curve only name its result.
    buckets = {
        f"__deltalakedb_bucket_{i}": _bucket(frame, path, share) for i, path in enumerate(columns)
    }
    curve = _interleaved([F.col(name) for name in buckets])
    partitions = [F.col(quoted(name)) for name in snapshot.partition_columns]
    count = max(1, math.ceil(sum(row["size_bytes"] for row in rows) / target_bytes))
    named = {f"__deltalakedb_curve_{i}": part for i, part in enumerate(curve)}
    order = [F.col(name) for name in named]
    ordered = frame.withColumns(buckets).withColumns(named).drop(*buckets)
    ordered = ordered.repartitionByRange(count, *partitions, *order)
    ordered = ordered.sortWithinPartitions(*partitions, *order).drop(*named)
    plan = bin_of(snapshot, files, rows[:1], target_bytes).plan
    # Spark's writer may sort rows by their partition once more, which would undo the order.
    adds = stage_frame(ordered, plan, sized=not partitions)
    counts = [live_rows(row) for row in rows]
    known = [count for count in counts if count is not None]
    if len(known) == len(counts) and sum(known) != written_rows(adds):
        raise DataFileError(
            f"Table {snapshot.table.name!r} is not optimised: its files have {written_rows(adds)} "
            f"rows, and {sum(known)} by their statistics",
            fix="Nothing was changed; read the table to see which of its files are damaged",
        )
    return adds


# --- clustering ---------------------------------------------------------------------------


def cluster(
    spark: SparkSession, table: Table, snapshot: Snapshot, *, target_bytes: int = TARGET_BYTES
) -> Compaction:
    """Order the rows of a table by its clustering columns, except for rows that are in order.

    Files that were ordered together are a cube, and have its id as a tag, as in Delta. Large cubes
    stay; smaller ones are ordered again, together with new files.
    """
    paths = clustering_paths(snapshot.metadata, snapshot.domain_metadata) or []
    names = [dotted(path) for path in paths]
    listed = files_to_optimize(snapshot, None)
    rows = _unordered(rows_of_files(listed), names)
    if not rows:
        return Compaction(table.name, None, 0, 0, 0, 0, listed.num_rows, 0)
    files = pa.Table.from_pylist(rows, schema=listed.schema)
    tags = {"ZCUBE_ID": str(uuid.uuid4()), "ZCUBE_ZORDER_BY": json.dumps(names)}
    adds = [
        replace(add, clustering_provider=_PROVIDER, tags={**tags, "ZCUBE_ZORDER_CURVE": "zorder"})
        for add in _ordered(spark, snapshot, files, paths, target_bytes)
    ]
    commit, done = optimized(
        snapshot,
        rows,
        adds,
        now=table.now_ms(),
        considered=listed.num_rows,
        where=None,
        columns=(),
        clustered_by=names,
    )
    return replace(done, version=int(table.submit(commit)))


def _unordered(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """The files to order again; none if all of them are one cube, or large cubes."""
    cubes: dict[str | None, list[dict[str, Any]]] = {}
    for row in rows:
        tags = {} if row["tags"] is None else json.loads(row["tags"])
        by = json.loads(tags.get("ZCUBE_ZORDER_BY") or "null")
        here = row["clustering_provider"] == _PROVIDER and by == names
        cubes.setdefault(tags.get("ZCUBE_ID") if here else None, []).append(row)
    small = [
        files
        for cube, files in cubes.items()
        if cube is None or sum(row["size_bytes"] for row in files) < _CUBE_BYTES
    ]
    alone = len(small) == 1 and None not in cubes
    return [] if alone else [row for files in small for row in files]


def _checked(snapshot: Snapshot, columns: Sequence[str]) -> list[ColumnPath]:
    """The columns to order by, as the table spells them; fields of structs by their paths."""
    if not columns:
        raise InvalidArgumentError("There is no column to order by", fix="Name one, e.g. 'id'")
    partitions = {name.lower() for name in snapshot.partition_columns}
    paths: list[ColumnPath] = []
    for column in columns:
        path, kind = _column(snapshot.schema, column)
        why = ""
        if kind is None:
            why = f"Its columns are: {', '.join(snapshot.schema.names)}"
        elif len(path) == 1 and path[0].lower() in partitions:
            why = "It is a partition column: files have one value of it anyway"
        elif not isinstance(kind, DecimalType) and str(kind) not in _ORDERED:
            why = f"It is of type {str(kind)[:100]}, which has no order"
        elif path in paths:
            why = "It is named twice"
        if why:
            raise ConfigurationError(
                f"Table {snapshot.table.name!r} cannot be ordered by {column!r}",
                why=why,
                fix="Name other columns",
            )
        paths.append(path)
    return paths


def _column(schema: StructType, name: str) -> tuple[ColumnPath, DataType | None]:
    """The column of exactly that name, which may have dots; otherwise the path of a field."""
    field = schema.get(name)
    if field is not None:
        return (field.name,), field.type
    path: list[str] = []
    kind: DataType = schema
    for part in name_parts(name):
        field = kind.get(part) if isinstance(kind, StructType) else None
        if field is None:
            return (), None
        path.append(field.name)
        kind = field.type
    return tuple(path), kind


def _share(files: Sequence[dict[str, Any]]) -> float:
    """The share of the rows that is a large enough sample."""
    counts = [
        (json.loads(file["stats"]) if file["stats"] else {}).get("numRecords") for file in files
    ]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or not sum(known):
        return 1.0
    return min(1.0, float(_SAMPLED / sum(known)))


def _bucket(frame: DataFrame, path: ColumnPath, share: float) -> Column:
    """The bucket of a value: one of 256 ranges with about as many rows each; nulls in the first."""
    column = _sortable(frame, F.col(".".join(map(quoted, path))))
    shares = [i / _BUCKETS for i in range(1, _BUCKETS)]
    known = frame.select(column.alias("v")).where("v IS NOT NULL")
    if known.schema["v"].dataType.typeName() in ("float", "double"):
        # Python cannot sort NaN; the search puts it last, as Spark does.
        known = known.where("NOT isnan(v)")
    if share < 1:
        known = known.sample(share, seed=7)
    # Only the rank of values in a sample counts, so any type with an order will do.
    sample = known.orderBy("v").collect()
    values = [bytes(row.v) if isinstance(row.v, bytearray) else row.v for row in sample]
    bounds = sorted({values[int(share * len(values))] for share in shares}) if values else []
    return F.when(column.isNull(), F.lit(0)).otherwise(_search(column, bounds, 0))


def _sortable(frame: DataFrame, column: Column) -> Column:
    """Dates and timestamps as numbers: Spark's range is larger than Python's."""
    kind = frame.select(column.alias("v")).schema["v"].dataType.typeName()
    if kind == "date":
        return F.unix_date(column)
    if kind in ("timestamp", "timestamp_ntz"):
        return F.unix_micros(column.cast("timestamp"))
    return column


def _search(column: Column, bounds: Sequence[Any], first: int) -> Column:
    """A binary search as nested conditions."""
    if not bounds:
        return F.lit(first)
    middle = len(bounds) // 2
    return F.when(
        column < F.lit(bounds[middle]), _search(column, bounds[:middle], first)
    ).otherwise(_search(column, bounds[middle + 1 :], first + middle + 1))


def _interleaved(buckets: Sequence[Column]) -> list[Column]:
    """One bit of each bucket in turn, the highest first: a position on the Z-curve.

    The result are numbers to sort by one after the other, with as many bits each as fit.
    """
    bits = [
        F.shiftright(bucket, bit).bitwiseAND(F.lit(1)).cast("bigint")
        for bit in reversed(range(_BITS))
        for bucket in buckets
    ]
    curve = []
    for start in range(0, len(bits), _BITS_A_NUMBER):
        part = bits[start : start + _BITS_A_NUMBER]
        number = F.lit(0).cast("bigint")
        for position, one in enumerate(reversed(part)):
            number = number + F.shiftleft(one, position)
        curve.append(number)
    return curve
