"""What the readers are known not to do, as data, and the judgement of what they do.

A reader gives the same rows as our own snapshot, or a declared limit applies to it, and then it
has to refuse in the declared words, or to be wrong in its rows. Where a reader has learned to do
better, the judgement fails too: a limit that is none any more must go from this list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from deltalakedb.actions.datatypes import physical_name
from deltalakedb.snapshot import Snapshot
from interop.canonical import differences
from interop.readers import Reader, Refused


@dataclass(frozen=True, slots=True)
class Case:
    """A table at a version, as a reader meets it; `name` is its name where it has a known one.

    `path` is its folder, or its address in an object store.
    """

    path: Path | str
    snapshot: Snapshot
    name: str = ""
    timestamp: datetime | None = None
    head: int = -1

    @property
    def version(self) -> int:
        """The version that is read."""
        return self.snapshot.version

    @property
    def features(self) -> frozenset[str]:
        """The features that readers have to know."""
        return frozenset(self.snapshot.protocol.reader_features or ())

    @property
    def checkpoints(self) -> list[int]:
        """The versions of the checkpoints that are there."""
        names = (path.name for path in (Path(self.path) / "_delta_log").glob("*.checkpoint*"))
        return sorted({int(name.split(".")[0]) for name in names if name[0].isdigit()})


Applies: TypeAlias = Callable[[Case], bool]


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a reader fails, why, and what it says (None: it gives other rows instead)."""

    reader: str
    why: str
    says: str | None
    applies: Applies


def named(*names: str, versions: range = range(1_000_000)) -> Applies:
    """Limits of single golden tables, at some of their versions."""
    return lambda case: case.name in names and case.version in versions


def needs(*features: str) -> Applies:
    """Limits of tables whose readers must know a feature."""
    return lambda case: bool(case.features & set(features))


def _is_mapped(case: Case) -> bool:
    protocol = case.snapshot.protocol
    return protocol.min_reader_version == 2 or "columnMapping" in case.features


def _has_misplaced_partitions(case: Case) -> bool:
    schema, names = case.snapshot.schema, case.snapshot.partition_columns
    mapped = any(physical_name(schema.field(name)) != name for name in names)
    first = [field.name for field in schema.fields][: len(names)]
    return mapped and first != list(names) and case.snapshot.num_files > 0


def _hides_behind_percents(case: Case) -> bool:
    files = case.snapshot.files(columns=["path", "dv_id"])
    pairs = zip(files["path"].to_pylist(), files["dv_id"].to_pylist(), strict=True)
    return any(vector and "%" in path for path, vector in pairs)


def _is_far_from_checkpoints(case: Case) -> bool:
    there = case.checkpoints
    near = {case.version, case.version - 1} & {-1, 0, *there}
    return bool(there) and case.version < there[-1] and not near


def _came_late(case: Case) -> bool:
    if case.timestamp is None:
        return False
    commit = Path(case.path) / "_delta_log" / f"{case.version:020d}.json"
    return commit.stat().st_mtime > case.timestamp.timestamp()


def _uses_variants(case: Case) -> bool:
    return '"variant"' in (case.snapshot.metadata.schema_string or "")


def _has_no_schema(case: Case) -> bool:
    return case.snapshot.metadata.schema_string is None


# Tables that are made to show limits: no golden one does.
ONE_DOUBLE = "one-double"

LIMITS: tuple[Limit, ...] = (
    *(
        Limit(reader, "needs a schema, be it empty", "schemaString", _has_no_schema)
        for reader in ("delta-rs", "DuckDB", "polars")
    ),
    Limit(
        "delta-rs",
        "does not know the feature",
        "Unsupported table features required",
        needs("vacuumProtocolCheck", "typeWidening-preview", "typeWidening"),
    ),
    *(
        Limit(
            reader,
            "reads INT96 as nanoseconds, which end in the year 2262",
            None,
            named("delta-rs-table_with_edge_timestamps"),
        )
        for reader in ("delta-rs", "polars")
    ),
    Limit(
        "DuckDB", "goes by versions only", "knows versions only", lambda case: bool(case.timestamp)
    ),
    Limit(
        "DuckDB", "variants have no Arrow form", "Unsupported Arrow type VARIANT", _uses_variants
    ),
    Limit(
        "DuckDB",
        "fails on lists of the legacy format",
        "Vector::Reference used on vector of different type",
        named("delta-parquet-all-types-legacy-format"),
    ),
    Limit(
        "DuckDB",
        "gives mapped partition columns the values at their places in the schema",
        None,
        _has_misplaced_partitions,
    ),
    Limit("polars", "does not know column mapping", "polars does not support", _is_mapped),
    Limit(
        "polars",
        "does not know the feature",
        "polars does not support",
        needs("vacuumProtocolCheck", "typeWidening-preview", "v2Checkpoint"),
    ),
    Limit(
        "polars",
        "looks for deletion vectors by decoded paths, and misses those of encoded ones",
        None,
        _hides_behind_percents,
    ),
    Limit(
        "polars",
        "reads one form of partition values of timestamps only, and ours is another than theirs",
        "could not parse '.*' with pattern",
        named(
            "delta-data-reader-partition-values",
            "delta-kernel-timestamp-INT96",
            "delta-kernel-timestamp-PST",
            "delta-kernel-timestamp-partition-col-ISO8601",
            versions=range(1, 2),
        ),
    ),
    Limit(
        "Sail",
        "finds a checkpoint for an old version only at that version or right before it",
        "Missing commit file: expected version",
        _is_far_from_checkpoints,
    ),
    Limit(
        "Sail",
        "does not take fields of other makers",
        "Invalid JSON in log record",
        named("delta-rs-delta-live-table", versions=range(2)),
    ),
    Limit(
        "Sail",
        "reads partition values of decimals as floats",
        None,
        named("delta-basic-decimal-table"),
    ),
    Limit(
        "Sail",
        "takes a decimal that is the same in all rows from the statistics, as a float",
        None,
        named("delta-hive__deltatbl-map-types-correctly", versions=range(1, 2)),
    ),
    Limit(
        "Sail",
        "takes a double that is the same in all rows from the statistics, and reads it inexactly",
        None,
        named(ONE_DOUBLE),
    ),
    Limit(
        "Sail",
        "widens floats by their text",
        None,
        named("delta-type-widening", versions=range(2, 4)),
    ),
    Limit(
        "Sail",
        "breaks off on statistics of a struct that is never null",
        "RST_STREAM",
        named("delta-rs-table_with_null_stats_in_notnull_struct", versions=range(1, 3)),
    ),
    Limit(
        "Sail",
        "does not decode the path of a deletion vector",
        "No such file or directory",
        named("delta-spark__table-with-dv-special-char"),
    ),
    Limit(
        "Delta on Spark",
        "PySpark cannot bring variants inside of lists to Arrow",
        "Can't view array of type",
        _uses_variants,
    ),
    Limit(
        "Delta on Spark",
        "does not read a table without columns",
        "DELTA_READ_TABLE_WITHOUT_COLUMNS",
        lambda case: not case.snapshot.schema.fields,
    ),
    *(
        Limit(reader, "goes by the times of files, not by those in commits", None, _came_late)
        for reader in ("delta-rs", "polars")
    ),
)


def limit_of(reader: Reader, case: Case) -> Limit | None:
    """The limit that stands between a reader and a table."""
    applying = (limit for limit in LIMITS if limit.reader == reader.name and limit.applies(case))
    return next(applying, None)


def judge(
    reader: Reader, case: Case, ours: pa.Table, answer: Future[pa.Table] | None = None
) -> str | None:
    """What is wrong with the rows that a reader sees; None where all is as it should be.

    `answer` is what the reader was asked for already.
    """
    limit = limit_of(reader, case)
    try:
        theirs = answer.result() if answer else _read(reader, case)
    except Refused as refusal:
        if limit is not None and limit.says is not None and re.search(limit.says, str(refusal)):
            return None
        return f"{_place(reader, case)}: refused: {str(refusal)[:600]}"
    found = differences(ours, theirs)
    if limit is None:
        return f"{_place(reader, case)}: {found}" if found else None
    if limit.says is not None or not found:
        return f"{_place(reader, case)}: no limit any more: {limit.why}"
    return None


def judge_all(problems: Iterable[str | None]) -> None:
    """Fail with all that is wrong."""
    wrong = [problem for problem in problems if problem is not None]
    assert not wrong, "\n".join(wrong[:20])


def _read(reader: Reader, case: Case) -> pa.Table:
    if case.timestamp is not None:
        return reader.read(case.path, timestamp=case.timestamp)
    return reader.read(case.path, version=None if case.version == case.head else case.version)


def _place(reader: Reader, case: Case) -> str:
    at = f"version {case.version}" if case.timestamp is None else f"{case.timestamp}"
    return f"{reader.name} at {at} of {case.head}"
